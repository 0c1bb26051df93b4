"""LARS against its formula, in five published variants."""

import pytest
import torch
from torch import Tensor, nn

from cl.training import optim
from tests.support.optimizers import VARIANTS, config


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
