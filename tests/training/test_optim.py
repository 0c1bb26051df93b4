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


def test_warm_up_then_cosine_over_the_rest() -> None:
    factors = [optim.lr_factor(config(), step, 100, 10) for step in range(101)]
    assert factors[:21] == pytest.approx([step / 20 for step in range(21)])
    for step in range(20, 101):
        assert factors[step] == pytest.approx(0.5 * (1 + math.cos(math.pi * (step - 20) / 80)))
    assert factors[100] == pytest.approx(0)


def test_a_run_shorter_than_its_warm_up_warms_up_for_half_of_its_steps() -> None:
    short = config(epochs=1)
    factors = [optim.lr_factor(short, step, 10, 10) for step in range(11)]
    assert factors[:6] == pytest.approx([step / 5 for step in range(6)])
    assert factors[10] == pytest.approx(0)
    assert config(epochs=2).warmup == 1, "else the rate would never fall"
    assert config(epochs=2.1).warmup == 2


def test_steps_at_fractions_of_the_run() -> None:
    steps = config(schedule="steps", milestones=[0.6, 0.8], gamma=0.2, warmup_epochs=0)
    factors = [optim.lr_factor(steps, step, 100, 10) for step in (0, 59, 60, 79, 80, 99)]
    assert factors == pytest.approx([1, 1, 0.2, 0.2, 0.04, 0.04])
    each = config(schedule="steps", milestones=[0.4, 0.5, 0.7], gamma=[0.1, 0.5, 0.2], warmup_epochs=0)
    factors = [optim.lr_factor(each, step, 100, 10) for step in (0, 39, 40, 49, 50, 69, 70, 99)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.05, 0.05, 0.01, 0.01])
    with pytest.raises(ValueError, match="must be one factor, or one for each of milestones"):
        config(schedule="steps", milestones=[0.4, 0.5], gamma=[0.1], warmup_epochs=0)
    assert optim.lr_factor(config(schedule="constant", warmup_epochs=0), 99, 100, 10) == 1


def test_simos_cosine_is_not_restarted_after_warm_up() -> None:
    """w(t) (1 + cos(pi t / T)) / 2, w rising from 0.001 to 1 over the first two epochs."""
    simo = config(schedule="cosine_whole", warmup_start=0.001)
    for step in range(100):
        w = 0.001 + 0.999 * min(1, step / 20)
        assert optim.lr_factor(simo, step, 100, 10) == pytest.approx(
            w * (1 + math.cos(math.pi * step / 100)) / 2
        )


def test_the_learning_rate_may_change_once_per_epoch() -> None:
    """MoCo and SimSiam: (1 + cos(pi e / E)) / 2 for epochs e = 0 to E - 1."""
    moco = config(per="epoch", warmup_epochs=0)
    for step in range(100):
        assert optim.lr_factor(moco, step, 100, 10) == pytest.approx(
            (1 + math.cos(math.pi * (step // 10) / 10)) / 2
        )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [  # Fast-MoCo rises from a quarter; the small-scale benchmark goes down to 1e-6 of 0.03
        ({"warmup_start": 0.25}, {0: 0.25, 10: 0.625, 20: 1, 60: 0.55, 100: 0.1}),
        ({"schedule": "cosine_whole", "warmup_epochs": 0}, {0: 1, 50: 0.55, 100: 0.1}),
    ],
)
def test_warm_up_may_start_and_cosines_end_above_0(changes, expected) -> None:
    schedule = config(final=0.1, **changes)
    for step, factor in expected.items():
        assert optim.lr_factor(schedule, step, 100, 10) == pytest.approx(factor)


@pytest.mark.parametrize("decay_1d", [True, False])
def test_weight_decay_of_vectors_is_a_choice(decay_1d) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = optim.build(config(decay_1d=decay_1d), [optim.Part(module)])
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay[id(module[0].weight)] == 0.01
    for vector in (module[0].bias, module[1].weight, module[1].bias):
        assert decay[id(vector)] == (0.01 if decay_1d else 0.0)


@pytest.mark.parametrize("kind", [{"kind": "sgd"}, {"kind": "lars", "lars": VARIANTS["moco_v3"]}])
def test_modules_can_have_their_own_weight_decay(kind) -> None:
    head, body = nn.Linear(3, 2), nn.Linear(4, 3)
    optimizer = optim.build(config(**kind), [optim.Part(head, weight_decay=0.3), optim.Part(body)])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0, 0.01, 0]
    assert {group["lr"] for group in optimizer.param_groups} == {0.6}


def test_modules_and_their_vectors_can_have_their_own_rates() -> None:
    """Barlow Twins has one for biases and norm layers; the rate of the part multiplies both."""
    head, body = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = optim.build(config(), [optim.Part(head), optim.Part(body, 0.5, rate_1d=0.1)])
    optim.set_lr(optimizer, 2.0, 0.25)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates[id(head.weight)] == rates[id(head.bias)] == 0.5
    assert rates[id(body[0].weight)] == 0.25
    for vector in (body[0].bias, body[1].weight, body[1].bias):
        assert rates[id(vector)] == 0.25 * 0.1


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
