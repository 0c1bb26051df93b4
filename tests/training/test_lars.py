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
