"""Optimizers and schedules against loops of their definitions, LARS in five published variants."""

import math

import pytest
import torch
from torch import Tensor, nn

from cl.training import optim

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

VARIANTS = {
    "moco_v3": optim.Lars(eta=0.001, eps=0.0, adapt_1d=False, norm="sum", order="ratio"),
    "simclr": optim.Lars(eta=0.001, eps=0.0, adapt_1d=False, norm="sum", order="ratio_rate"),
    "openselfsup": optim.Lars(eta=0.001, eps=0.0, adapt_1d=False, norm="parts", order="ratio_rate"),
    "larc": optim.Lars(eta=0.001, eps=1e-8, adapt_1d=True, norm="parts", order="ratio"),
    "fast_moco": optim.Lars(eta=0.001, eps=1e-8, adapt_1d=True, norm="parts", order="last"),
}


def config(**changes) -> optim.Config:  # type: ignore[no-untyped-def]
    """SGD with warm-up and a cosine, or what `changes` makes of it."""
    return optim.Config(**{**BASE, **changes})


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


def lars_loop(name: str, w: Tensor, g: Tensor, v: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """One step of each paper's code, with decay 0.01 and momentum 0.9: new weights and momentum buffer."""
    d, norm, adapted = g + 0.01 * w, float(w.norm()), w.ndim > 1 or name in ("larc", "fast_moco")
    if name == "larc" and not g.any():
        return w - rate * 0.9 * v, 0.9 * v
    if name in ("moco_v3", "simclr"):
        below = float(d.norm())
    else:
        below = float(g.norm()) + 0.01 * norm + (1e-8 if name in ("larc", "fast_moco") else 0.0)
    ratio = 0.001 * norm / below if adapted and norm > 0 else 1.0
    if name in ("moco_v3", "larc"):
        v = 0.9 * v + ratio * d
        return w - rate * v, v
    if name in ("simclr", "openselfsup"):
        v = 0.9 * v + rate * ratio * d
        return w - v, v
    v = 0.9 * v + d
    return w - rate * ratio * v, v


@pytest.mark.parametrize("name", VARIANTS)
def test_lars_equals_its_formula(name) -> None:
    """Five steps of tensors, in a loop of plain numbers: some are zero, and one has another memory layout.

    In the third step, the gradients are 0: with norms of parts, the ratio is eta / decay, or LARC skips it.
    A tensor without a gradient stays.
    """
    torch.manual_seed(0)
    module = nn.Module()
    module.matrix = nn.Parameter(torch.randn(4, 3, dtype=torch.float64))
    module.zero = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    module.vector = nn.Parameter(torch.randn(5, dtype=torch.float64))
    module.bias = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    kernel = torch.randn(2, 3, 3, 3, dtype=torch.float64)
    module.kernel = nn.Parameter(kernel.contiguous(memory_format=torch.channels_last))
    module.unused = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    optimizer = optim.build(config(kind="lars", lars=VARIANTS[name], decay_1d=True), [optim.Part(module)])
    expected = {name: p.detach().clone() for name, p in module.named_parameters()}
    velocity = {name: torch.zeros_like(p) for name, p in expected.items()}
    for step in range(5):
        rate = 0.1 * (step + 1)
        optim.set_lr(optimizer, rate, 1.0)
        for key, p in module.named_parameters():
            if key == "unused":
                continue
            p.grad = torch.randn(p.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
            p.grad *= step != 2
            expected[key], velocity[key] = lars_loop(name, expected[key], p.grad, velocity[key], rate)
        optimizer.step()
        for key, p in module.named_parameters():
            torch.testing.assert_close(p.detach(), expected[key], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", VARIANTS)
def test_lars_never_waits_for_the_device(name) -> None:
    """On the meta device, which computes only shapes, reading any number is an error."""
    tensors = [nn.Parameter(torch.ones(shape, device="meta")) for shape in ((4, 3), (5,), (2, 3, 3, 3), ())]
    for tensor in tensors[:-1]:
        tensor.grad = torch.ones_like(tensor)
    optimizer = optim.LARS([{"params": tensors}], 0.1, momentum=0.9, variant=VARIANTS[name])
    for _ in range(2):
        optimizer.step()
