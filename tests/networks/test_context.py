"""Overlapping patches against slices; test_cpc_v2 has a loop of the masked network."""

import pytest
import torch

from cl.networks.context import overlapping_patches


@pytest.mark.parametrize(
    ("side", "grid", "patch", "size", "stride"),
    [(12, 3, None, 6, 3), (8, 3, None, 4, 2), (16, 7, None, 4, 2), (13, 3, 5, 5, 4), (26, 6, 6, 6, 4)],
)
def test_patches_reach_from_edge_to_edge(side, grid, patch, size, stride) -> None:
    images = torch.randn(2, 3, side, side)
    found = iter(overlapping_patches(images, grid, patch))
    for image in images:
        for top in range(0, side - size + 1, stride):
            for left in range(0, side - size + 1, stride):
                assert torch.equal(next(found), image[:, top : top + size, left : left + size])
    assert next(found, None) is None


@pytest.mark.parametrize(
    ("side", "grid", "patch", "message"),
    [
        (256, 6, None, "grid=6 needs views divisible by 7, found 256 px; choose others, or a patch"),
        (256, 6, 80, "leaves 176 px for the other 5 patches of grid=6; it must leave a multiple of 5"),
        (32, 3, 32, "patch=32 in views of 32 px leaves 0 px"),
        (32, 3, 40, "leaves -8 px"),
    ],
)
def test_patches_that_do_not_fit_are_refused(side, grid, patch, message) -> None:
    with pytest.raises(ValueError, match=message):
        overlapping_patches(torch.zeros(1, 3, side, side), grid, patch)
