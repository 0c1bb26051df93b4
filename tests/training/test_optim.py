"""Optimizers and schedules against loops of their definitions."""

import math

import pytest
import torch
from torch import Tensor, nn

from cl.training import optim
from tests.support.optimizers import VARIANTS, config


def test_the_learning_rate_scales_as_stated() -> None:
    assert config().peak_lr == pytest.approx(0.6)
    assert config(scaling="none").peak_lr == pytest.approx(0.3)


def cosine(x: float) -> float:
    return (1 + math.cos(math.pi * x)) / 2


STEPS = {"schedule": "steps", "warmup_epochs": 0}
SCHEDULES = {  # settings, and the factor of a step of 100, in 10 epochs
    "warm-up, cosine over the rest": ({}, lambda t: t / 20 if t < 20 else cosine((t - 20) / 80)),
    "cosine over the whole run (SiMo)": (
        {"schedule": "cosine_whole", "warmup_start": 0.001},
        lambda t: (0.001 + 0.999 * min(1, t / 20)) * cosine(t / 100),
    ),
    "once per epoch (MoCo, SimSiam)": ({"per": "epoch", "warmup_epochs": 0}, lambda t: cosine(t // 10 / 10)),
    "from a quarter, to a tenth": (
        {"warmup_start": 0.25, "final": 0.1},
        lambda t: 0.25 + 0.75 * t / 20 if t < 20 else 0.1 + 0.9 * cosine((t - 20) / 80),
    ),
    "the whole run, to a tenth": (
        {"schedule": "cosine_whole", "warmup_epochs": 0, "final": 0.1},
        lambda t: 0.1 + 0.9 * cosine(t / 100),
    ),
    "one gamma": (
        STEPS | {"milestones": [0.6, 0.8], "gamma": 0.2},
        lambda t: 1 if t < 60 else 0.2 if t < 80 else 0.04,
    ),
    "a gamma each": (
        STEPS | {"milestones": [0.4, 0.5], "gamma": [0.1, 0.5]},
        lambda t: 1 if t < 40 else 0.1 if t < 50 else 0.05,
    ),
    "constant": ({"schedule": "constant", "warmup_epochs": 0}, lambda t: 1),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_its_formula(name) -> None:
    changes, factor = SCHEDULES[name]
    found = [optim.lr_factor(config(**changes), step, 100, 10) for step in range(100)]
    assert found == pytest.approx([factor(step) for step in range(100)])


def test_a_run_shorter_than_its_warm_up_warms_up_for_half_of_its_steps() -> None:
    short = config(epochs=1)
    factors = [optim.lr_factor(short, step, 10, 10) for step in range(11)]
    assert factors[:6] == pytest.approx([step / 5 for step in range(6)])
    assert factors[10] == pytest.approx(0)
    assert config(epochs=2).warmup == 1, "else the rate would never fall"
    assert config(epochs=2.1).warmup == 2


@pytest.mark.parametrize("kind", [{"kind": "sgd"}, {"kind": "lars", "lars": VARIANTS["moco_v3"]}])
def test_vectors_may_have_weight_decay_too(kind) -> None:
    optimizer = optim.build(config(decay_1d=True, **kind), [optim.Part(nn.BatchNorm1d(3))])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01]


def test_modules_and_their_vectors_can_have_their_own_rates_and_decay() -> None:
    """Barlow Twins has a rate for biases and norm layers; the rate of the part multiplies both."""
    head, body = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    parts = [optim.Part(head, weight_decay=0.3), optim.Part(body, 0.5, rate_1d=0.1)]
    optimizer = optim.build(config(), parts)
    optim.set_lr(optimizer, 2.0, 0.25)
    found = {id(p): (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}
    assert (found[id(head.weight)], found[id(head.bias)]) == ((0.5, 0.3), (0.5, 0))
    assert found[id(body[0].weight)] == (0.25, 0.01)
    for vector in (body[0].bias, body[1].weight, body[1].bias):
        assert found[id(vector)] == (0.25 * 0.1, 0)


def test_a_fixed_predictor_keeps_the_largest_rate() -> None:
    """SimSiam and Fast-MoCo: no warm-up or decay for the predictor; each parameter is in one group."""
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    optimizer = optim.build(config(), [optim.Part(module)], fixed=module[2])
    assert optim.set_lr(optimizer, 2.0, 0.25) == 0.5
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert len(rates) == sum(len(group["params"]) for group in optimizer.param_groups) == 6
    for parameter in module.parameters():
        assert rates[id(parameter)] == (2.0 if any(parameter is p for p in module[2].parameters()) else 0.5)


def test_adamw_equals_pytorchs() -> None:
    module = nn.Linear(2, 2)
    optimizer = optim.build(config(kind="adamw", momentum=0.0, betas=(0.8, 0.99)), [optim.Part(module)])
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["betas"] == (0.8, 0.99)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]


def test_the_weight_decay_follows_half_a_cosine() -> None:
    """Of matrices only, unless a part has its own; the gradient stays what it is."""
    module, probe = nn.Linear(2, 2), nn.Linear(2, 2)
    parts = [optim.Part(module), optim.Part(probe, weight_decay=0.5)]
    scheduled = config(weight_decay=0.04, final_weight_decay=0.4)
    optimizer = optim.build(scheduled, parts)
    for step in range(5):
        optim.set_decay(optimizer, scheduled, step / 4)
        decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        expected = 0.4 + 0.5 * (0.04 - 0.4) * (1 + math.cos(math.pi * step / 4))
        assert decays[id(module.weight)] == pytest.approx(expected)
        assert (decays[id(module.bias)], decays[id(probe.weight)]) == (0.0, 0.5)
    constant = optim.build(config(), parts)
    optim.set_decay(constant, config(), 1.0)
    assert {group["weight_decay"] for group in constant.param_groups} == {0.01, 0.0, 0.5}


def test_gradients_are_clipped_tensor_by_tensor_and_then_together() -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(3, 4), 0.01 * torch.randn(5), torch.zeros(2)]

    def clipped(**options) -> tuple[list[Tensor], Tensor]:  # type: ignore[no-untyped-def]
        parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer = torch.optim.SGD(parameters, 1.0)
        norm = optim.clip_gradients(optimizer, config(**options))
        return [p.grad for p in parameters if p.grad is not None], norm

    whole = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    each = [g * min(1.0, 0.5 / (float(g.norm()) + 1e-6)) for g in gradients]
    found, norm = clipped(clip_each=0.5)
    torch.testing.assert_close(found, each)
    torch.testing.assert_close(norm, whole)
    rest = torch.cat([gradient.flatten() for gradient in each]).norm()
    found, norm = clipped(clip_each=0.5, clip=0.2)
    torch.testing.assert_close(found, [g * 0.2 / (rest + 1e-6) for g in each])
    torch.testing.assert_close(norm, whole)
