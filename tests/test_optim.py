"""Optimizers and schedules against loops of their definitions."""

import math

import pytest
import torch
from torch import nn

from cl import optim

BASE = {
    "kind": "sgd",
    "batch_size": 512,
    "epochs": 10,
    "base_lr": 0.3,
    "reference_batch": 256,
    "scaling": "linear",
    "momentum": 0.9,
    "nesterov": False,
    "weight_decay": 0.01,
    "decay_1d": False,
    "warmup_epochs": 2,
    "schedule": "cosine",
    "milestones": [],
    "gamma": 0.1,
}


def config(**changes) -> optim.Config:  # type: ignore[no-untyped-def]
    return optim.Config(**{**BASE, **changes})


def test_the_learning_rate_scales_as_stated() -> None:
    assert config().lr() == pytest.approx(0.6)
    assert config(scaling="sqrt").lr() == pytest.approx(0.3 * math.sqrt(2))
    assert config(scaling="none").lr() == pytest.approx(0.3)


def test_warm_up_then_cosine_over_the_rest() -> None:
    factors = [optim.lr_factor(config(), step, 100, 10) for step in range(101)]
    assert factors[:21] == pytest.approx([step / 20 for step in range(21)])
    for step in range(20, 101):
        assert factors[step] == pytest.approx(0.5 * (1 + math.cos(math.pi * (step - 20) / 80)))
    assert factors[100] == pytest.approx(0)


def test_steps_at_fractions_of_the_run() -> None:
    steps = config(schedule="steps", milestones=[0.6, 0.8], gamma=0.2, warmup_epochs=0)
    factors = [optim.lr_factor(steps, step, 100, 10) for step in (0, 59, 60, 79, 80, 99)]
    assert factors == pytest.approx([1, 1, 0.2, 0.2, 0.04, 0.04])
    assert optim.lr_factor(config(schedule="constant", warmup_epochs=0), 99, 100, 10) == 1


def test_lars_equals_its_formula() -> None:
    """Five steps of a matrix, a zero matrix and a vector, in a loop of plain numbers."""
    torch.manual_seed(0)
    module = nn.Module()
    module.matrix = nn.Parameter(torch.randn(4, 3, dtype=torch.float64))
    module.zero = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    module.vector = nn.Parameter(torch.randn(5, dtype=torch.float64))
    optimizer = optim.build(config(kind="lars"), [(module, 1.0)])
    expected = {name: p.detach().clone() for name, p in module.named_parameters()}
    velocity = {name: torch.zeros_like(p) for name, p in expected.items()}
    for step in range(5):
        rate = 0.1 * (step + 1)
        optim.set_lr(optimizer, rate)
        for name, p in module.named_parameters():
            p.grad = torch.randn(p.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
            gradient = p.grad.clone()
            if expected[name].ndim > 1:
                gradient += 0.01 * expected[name]
                norm = float(expected[name].norm())
                gradient *= 0.001 * norm / float(gradient.norm()) if norm > 0 else 1.0
            velocity[name] = 0.9 * velocity[name] + gradient
            expected[name] = expected[name] - rate * velocity[name]
        optimizer.step()
        for name, p in module.named_parameters():
            torch.testing.assert_close(p.detach(), expected[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("decay_1d", [True, False])
def test_weight_decay_of_vectors_is_a_choice(decay_1d) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = optim.build(config(decay_1d=decay_1d), [(module, 1.0)])
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay[id(module[0].weight)] == 0.01
    for vector in (module[0].bias, module[1].weight, module[1].bias):
        assert decay[id(vector)] == (0.01 if decay_1d else 0.0)


def test_modules_have_their_own_factor() -> None:
    head, body = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = optim.build(config(), [(head, 1.0), (body, 0.1)])
    optim.set_lr(optimizer, 2.0)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates[id(head.weight)] == rates[id(head.bias)] == 2.0
    assert rates[id(body.weight)] == rates[id(body.bias)] == pytest.approx(0.2)
