"""Combinatorial patches."""

import pytest
import torch
from torch import nn

from cl.networks import backbones, patches
from tests.support.backbones import residual

COMBINE = {"kind": "combine", "grid": 2, "choose": 2, "stage": "final", "pairs": "all"}


CUTS = [
    ({}, 6),
    ({"choose": 3}, 4),
    ({"choose": 1}, 4),
    ({"grid": 3}, 36),
    ({"stage": "projector"}, 6),
    ({"stage": "predictor"}, 6),
    ({"pairs": "adjacent"}, 4),
    ({"pairs": "drawn", "stage": "projector"}, 2),
    *(({"pairs": "adjacent", "stage": stage}, 4) for stage in patches.STITCHED),
    *(({"pairs": "drawn", "stage": stage}, 2) for stage in patches.STITCHED),
]


@pytest.mark.parametrize(("change", "count"), CUTS)
def test_patches_give_the_expected_number_of_embeddings(change, count) -> None:
    config = patches.Combine(**{**COMBINE, **change})
    torch.manual_seed(0)
    network = backbones.build(residual(width=0.125))
    projector, predictor = nn.Linear(64, 8), nn.Linear(8, 8)
    images = torch.randn(3, 3, 24, 24)
    embeddings = patches.encode(config, images, network, projector, predictor, torch.Generator())
    assert embeddings.shape == (3, count, 8)
    embeddings.sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_patches_are_cut_column_by_column_and_stitched_back() -> None:
    images = torch.arange(2 * 16.0).view(2, 1, 4, 4)
    cut = patches.cut(images, 2).unflatten(0, (2, 4))
    corners = [images[:, :, r : r + 2, c : c + 2] for c in (0, 2) for r in (0, 2)]
    assert torch.equal(cut, torch.stack(corners, 1))
    left, right = patches.stitch(cut, "vertical").unbind(1)
    assert torch.equal(torch.cat([left, right], 3), images)
    top, bottom = patches.stitch(cut, "horizontal").unbind(1)
    assert torch.equal(torch.cat([top, bottom], 2), images)


def test_patches_stitched_at_the_input_are_halves_of_the_image() -> None:
    """Pixels, encoder and all: the left half of an image is what its two left patches make."""
    torch.manual_seed(0)
    network = backbones.build(residual(width=0.125)).eval()
    config = patches.Combine(**{**COMBINE, "stage": "input", "pairs": "adjacent"})
    images = torch.randn(2, 3, 16, 16)
    ours = patches.encode(config, images, network, nn.Identity(), nn.Identity(), torch.Generator())
    halves = [images[..., :8], images[..., 8:], images[:, :, :8], images[:, :, 8:]]
    torch.testing.assert_close(ours, torch.stack([network(half) for half in halves], 1), rtol=1e-4, atol=1e-5)
