"""Optimizers and schedules against loops of their definitions."""

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
    "betas": None,
    "lars": None,
    "clip": None,
    "weight_decay": 0.01,
    "decay_1d": False,
    "warmup_epochs": 2,
    "warmup_start": 0.0,
    "schedule": "cosine",
    "per": "step",
    "final": 0.0,
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


def test_a_run_shorter_than_its_warm_up_warms_up_for_half_of_its_steps() -> None:
    short = config(epochs=1)
    factors = [optim.lr_factor(short, step, 10, 10) for step in range(11)]
    assert factors[:6] == pytest.approx([step / 5 for step in range(6)])
    assert factors[10] == pytest.approx(0)
    assert config(epochs=2).warmup == 2


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


def test_warm_up_may_start_above_0_and_the_cosine_end_there() -> None:
    """Fast-MoCo rises from a quarter; the small-scale benchmark goes down to 1e-6 of 0.03."""
    factors = [
        optim.lr_factor(config(warmup_start=0.25, final=0.1), step, 100, 10) for step in (0, 10, 20, 60, 100)
    ]
    assert factors == pytest.approx([0.25, 0.625, 1, 0.55, 0.1])


def test_a_cosine_over_the_whole_run_may_begin_without_warm_up_and_end_above_0() -> None:
    whole = config(schedule="cosine_whole", warmup_epochs=0, final=0.1)
    factors = [optim.lr_factor(whole, step, 100, 10) for step in (0, 50, 100)]
    assert factors == pytest.approx([1, 0.55, 0.1])


VARIANTS = {
    "moco_v3": optim.Lars(eta=0.001, eps=0.0, adapt_1d=False, norm="sum", order="ratio"),
    "simclr": optim.Lars(eta=0.001, eps=0.0, adapt_1d=False, norm="sum", order="ratio_rate"),
    "openselfsup": optim.Lars(eta=0.001, eps=0.0, adapt_1d=False, norm="parts", order="ratio_rate"),
    "larc": optim.Lars(eta=0.001, eps=1e-8, adapt_1d=True, norm="parts", order="ratio"),
    "fast_moco": optim.Lars(eta=0.001, eps=1e-8, adapt_1d=True, norm="parts", order="last"),
}


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
    """Five steps of a matrix, a zero matrix, a vector and a zero vector, in a loop of plain numbers.

    In the third step, the gradients are 0: with norms of parts, the ratio is eta / decay, or LARC skips it.
    """
    torch.manual_seed(0)
    module = nn.Module()
    module.matrix = nn.Parameter(torch.randn(4, 3, dtype=torch.float64))
    module.zero = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    module.vector = nn.Parameter(torch.randn(5, dtype=torch.float64))
    module.bias = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = optim.build(config(kind="lars", lars=VARIANTS[name], decay_1d=True), [optim.Part(module)])
    expected = {name: p.detach().clone() for name, p in module.named_parameters()}
    velocity = {name: torch.zeros_like(p) for name, p in expected.items()}
    for step in range(5):
        rate = 0.1 * (step + 1)
        optim.set_lr(optimizer, rate, 1.0)
        for key, p in module.named_parameters():
            p.grad = torch.randn(p.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
            p.grad *= step != 2
            expected[key], velocity[key] = lars_loop(name, expected[key], p.grad, velocity[key], rate)
        optimizer.step()
        for key, p in module.named_parameters():
            torch.testing.assert_close(p.detach(), expected[key], rtol=1e-12, atol=1e-14)


def lars_plain(variant: optim.Lars, group: dict, w: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """One step of the formula that `LARS` states, for one tensor: new weights and momentum buffer."""
    decay, rate = group["weight_decay"], group["lr"]
    d, ratio = g + decay * w, 1.0
    weight, parts = float(w.norm()), variant.norm == "parts"
    below = float(g.norm()) + decay * weight if parts else float(d.norm())
    if w.ndim > 1 or variant.adapt_1d:
        if weight > 0 and below > 0:
            ratio = variant.eta * weight / (below + variant.eps)
        if parts and variant.order == "ratio" and not g.any():
            ratio = 0.0
    entering = {"ratio": ratio, "ratio_rate": rate * ratio, "last": 1.0}[variant.order]
    v = group["momentum"] * v + entering * d
    return w - {"ratio": rate, "ratio_rate": 1.0, "last": rate * ratio}[variant.order] * v, v


def lars_tensors(device: str = "cpu") -> list[nn.Parameter]:
    """Weights and gradients: some are zero, one gradient is missing, and one has another memory layout."""
    draw = torch.Generator().manual_seed(0)
    tensors = []
    for shape in ((4, 3), (5,), (2, 3, 3, 3), ()):
        for zero in ("none", "weight", "gradient", "both"):
            w, g = (torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(2))
            w, g = w * (zero not in ("weight", "both")), g * (zero not in ("gradient", "both"))
            layout = torch.channels_last if w.ndim == 4 else torch.contiguous_format
            tensors.append(nn.Parameter(w.to(device, memory_format=layout)))
            tensors[-1].grad = g.to(device)
    return [*tensors, nn.Parameter(torch.ones(2, 2, dtype=torch.float64, device=device))]


@pytest.mark.parametrize("adapt_1d", [False, True])
@pytest.mark.parametrize("norm", ["sum", "parts"])
@pytest.mark.parametrize("order", ["ratio", "ratio_rate", "last"])
def test_lars_over_lists_equals_its_formula_per_tensor(order, norm, adapt_1d) -> None:
    """Every variant, with and without weight decay, in two groups; a tensor without gradient stays."""
    variant = optim.Lars(eta=0.02, eps=1e-8, adapt_1d=adapt_1d, norm=norm, order=order)
    groups = [
        {"params": lars_tensors(), "weight_decay": decay, "lr": rate}
        for decay, rate in ((0.0, 0.3), (0.1, 0.7))
    ]
    optimizer = optim.LARS(groups, 1.0, momentum=0.9, variant=variant)
    plain = [
        [(p.detach().clone(), torch.zeros_like(p)) for p in group["params"]]
        for group in optimizer.param_groups
    ]
    for factor in (1.0, 0.5, 2.0):
        for group, expected in zip(optimizer.param_groups, plain, strict=True):
            group["lr"] *= factor
            for i, p in enumerate(group["params"][:-1]):
                expected[i] = lars_plain(variant, group, expected[i][0], p.grad, expected[i][1])
        optimizer.step()
        for group, expected in zip(optimizer.param_groups, plain, strict=True):
            for p, (weight, _) in zip(group["params"], expected, strict=True):
                torch.testing.assert_close(p.detach(), weight, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_lars_never_waits_for_the_device(name) -> None:
    """On the meta device, which computes only shapes, reading any number is an error."""
    optimizer = optim.LARS([{"params": lars_tensors("meta")}], 0.1, momentum=0.9, variant=VARIANTS[name])
    for _ in range(2):
        optimizer.step()


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


def test_modules_can_have_different_learning_rates() -> None:
    head, body = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = optim.build(config(), [optim.Part(head), optim.Part(body, 0.1)])
    optim.set_lr(optimizer, 2.0, 1.0)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates[id(head.weight)] == rates[id(head.bias)] == 2.0
    assert rates[id(body.weight)] == rates[id(body.bias)] == pytest.approx(0.2)


def test_biases_and_norm_layers_can_have_their_own_rate() -> None:
    """Barlow Twins; the rate of the part multiplies both."""
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = optim.build(config(), [optim.Part(module, 0.5, rate_1d=0.1)])
    optim.set_lr(optimizer, 2.0, 0.25)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates[id(module[0].weight)] == 0.25
    for vector in (module[0].bias, module[1].weight, module[1].bias):
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
