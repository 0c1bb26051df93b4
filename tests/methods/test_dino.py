"""DINO against a loop written from its algorithm: centring, sharpening, the teacher's schedules."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cl.methods import dino
from cl.networks.target import Ema
from tests.support.loops import in_passes, normal
from tests.support.methods import TAU, batch_of, build, mean_loss, views

TEACHER = {"start": 0.04, "end": 0.07, "epochs": 3}
MOMENTUM, CENTRE = 0.9, 0.8


def small(**settings) -> dino.Method:  # type: ignore[no-untyped-def]
    ema = Ema(momentum=MOMENTUM, schedule="cosine")
    chosen = {"frozen_epochs": 0, "teacher_temperature": TEACHER, "centre_momentum": CENTRE, **settings}
    return build("dino", ema=ema, **chosen)


def logits(network: nn.Module, last_layer: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """V x (N, K); the last layer's rows have unit length."""
    return [normal(z) @ normal(last_layer).T for z in in_passes(network, inputs)]


def softmax(x: Tensor) -> Tensor:
    return x.exp() / x.exp().sum(-1, keepdim=True)


def dino_loss(students: list[Tensor], teachers: list[Tensor], centre: Tensor, temperature: float) -> Tensor:
    """Mean over codes i and views v != i of H(softmax((t_i - centre) / T), softmax(s_v / tau))."""
    terms = []
    for i, teacher in enumerate(teachers):
        for v, student in enumerate(students):
            if v != i:
                for s, t in zip(student, teacher, strict=True):
                    code = softmax((t.detach() - centre) / temperature)
                    terms.append(-(code * softmax(s / TAU).log()).sum())
    return torch.stack(terms).mean()


@pytest.mark.parametrize("sizes", [(12, 12), (12, 12, 8, 8)])
def test_dino_equals_its_algorithm(sizes) -> None:
    """Five steps in four epochs: losses, gradients, weights, teacher, centre and temperature."""
    method = small()
    student = nn.Sequential(copy.deepcopy(method.backbone), copy.deepcopy(method.projector))
    last_layer = method.prototypes.detach().clone().requires_grad_()
    teacher, teacher_last = copy.deepcopy(student), last_layer.detach().clone()
    centre = torch.zeros(len(last_layer), dtype=torch.float64)
    temperatures = [*np.linspace(0.04, 0.07, 3), 0.07]
    for step, epoch in enumerate([0, 0, 1, 2, 3]):
        inputs = views(5, seed=step, sizes=sizes)
        method.begin_epoch(epoch)
        ours = mean_loss(method, batch_of(inputs))
        teachers = logits(teacher, teacher_last, inputs[:2])
        theirs = dino_loss(logits(student, last_layer, inputs), teachers, centre, temperatures[epoch])
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        mine = [*method.backbone.parameters(), *method.projector.parameters(), method.prototypes]
        reference = [*student.parameters(), last_layer]
        gradients = torch.autograd.grad(ours, mine), torch.autograd.grad(theirs, reference)
        for p, q, a, b in zip(mine, reference, *gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
            p.data -= 0.1 * a
            q.data -= 0.1 * b
        progress = (step + 1) / 5
        method.after_step(progress)
        centre = CENTRE * centre + (1 - CENTRE) * torch.cat(teachers).detach().mean(0)
        m = 1 - (1 - MOMENTUM) * (1 + math.cos(math.pi * progress)) / 2
        with torch.no_grad():
            for t, s in zip([*teacher.parameters(), teacher_last], reference, strict=True):
                t.copy_(m * t + (1 - m) * s)
    torch.testing.assert_close(method.centre, centre)
    torch.testing.assert_close(method.target_prototypes, teacher_last)


def test_the_teacher_is_evaluated() -> None:
    method = small()
    assert method.evaluated == (method.target[0], method.target[1])
    student = build("simclr")
    assert student.evaluated == (student.backbone, student.projector)


def test_a_few_rows_at_a_time_change_nothing(monkeypatch) -> None:
    expected = mean_loss(small(), batch_of(views(5)))
    monkeypatch.setattr(dino, "LOGITS", 45)  # two of five rows with 20 prototypes
    ours = small()
    loss = mean_loss(ours, batch_of(views(5)))
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    loss.backward()


@pytest.mark.parametrize(
    ("epochs", "expected"), [(1, [0.04, 0.07, 0.07]), (2, [0.04, 0.07, 0.07]), (3, [0.04, 0.055, 0.07])]
)
def test_the_temperature_of_the_teacher_rises_by_epochs(epochs, expected) -> None:
    rises = dino.TeacherTemperature(start=0.04, end=0.07, epochs=epochs)
    assert [float(rises.at(torch.tensor(e))) for e in range(3)] == pytest.approx(expected, rel=1e-12)
