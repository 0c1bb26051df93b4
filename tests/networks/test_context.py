"""Overlapping patches against slices, and the masked network against sums over positions."""

import pytest
import torch
from torch import Tensor

from cl.networks.context import Config, MaskedContext, overlapping_patches


@pytest.mark.parametrize(("side", "grid", "patch", "stride"), [(12, 3, 6, 3), (8, 3, 4, 2), (16, 7, 4, 2)])
def test_patches_overlap_by_half(side, grid, patch, stride) -> None:
    images = torch.randn(2, 3, side, side)
    found = iter(overlapping_patches(images, grid))
    for image in images:
        for top in range(0, stride * grid, stride):
            for left in range(0, stride * grid, stride):
                assert torch.equal(next(found), image[:, top : top + patch, left : left + patch])
    assert next(found, None) is None
    with pytest.raises(AssertionError, match=f"{side} px in a grid of {side}"):
        overlapping_patches(images, side)


def context_loop(network: MaskedContext, x: Tensor) -> Tensor:
    """Position by position; x is (C, rows, columns)."""
    _, rows, columns = x.shape
    for block in network.blocks:
        narrow, across, down, widen = (
            c.weight for c in (block.narrow, block.across, block.down, block.widen)
        )

        def inner(r: int, c: int, x: Tensor = x, weight: Tensor = narrow, bias: Tensor = block.narrow.bias):  # type: ignore[no-untyped-def]
            return (weight[:, :, 0, 0] @ x[:, r, c] + bias).clamp(min=0)

        def beside(r: int, c: int, inner=inner, weight=across, bias=block.across.bias):  # type: ignore[no-untyped-def]
            around = [(-1, 0), (0, 1), (1, 2)]
            inside = [(d, tap) for d, tap in around if 0 <= c + d < columns]
            return sum(weight[:, :, 0, tap] @ inner(r, c + d) for d, tap in inside) + bias

        new = x.clone()
        for r in range(rows):
            for c in range(columns):
                total = down[:, :, 1, 0] @ beside(r, c) + block.down.bias
                if r > 0:
                    total = total + down[:, :, 0, 0] @ beside(r - 1, c)
                new[:, r, c] = x[:, r, c] + widen[:, :, 0, 0] @ total.clamp(min=0) + block.widen.bias
        x = new
    return x.clamp(min=0)


def test_context_equals_sums_over_positions() -> None:
    torch.manual_seed(0)
    network = MaskedContext(4, Config(blocks=3, width=5)).double()
    x = torch.randn(2, 4, 4, 3, dtype=torch.float64)
    theirs = torch.stack([context_loop(network, image) for image in x])
    torch.testing.assert_close(network(x), theirs, rtol=1e-12, atol=1e-12)


def test_context_of_a_row_does_not_see_the_rows_below() -> None:
    """It sees everything else: all of the rows above, and its own."""
    torch.manual_seed(0)
    network = MaskedContext(4, Config(blocks=5, width=6)).double()
    x = torch.randn(1, 4, 4, 4, dtype=torch.float64, requires_grad=True)
    (seen,) = torch.autograd.grad(network(x)[0, :, 2].sum(), x)
    assert torch.equal(seen[0, :, 3], torch.zeros(4, 4, dtype=torch.float64))
    assert bool((seen[0, :, :3] != 0).all())
