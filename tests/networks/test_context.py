"""Overlapping patches against slices, and the masked network against sums over positions."""

import pytest
import torch

from cl.networks.context import Config, MaskedContext, Predictor, overlapping_patches
from tests.support.loops import context_loop


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


def test_context_equals_sums_over_positions() -> None:
    torch.manual_seed(0)
    network = MaskedContext(4, Config(blocks=3, width=5, scale=1)).double()
    x = torch.randn(2, 4, 4, 3, dtype=torch.float64)
    theirs = torch.stack([context_loop(network, image) for image in x])
    torch.testing.assert_close(network(x), theirs, rtol=1e-12, atol=1e-12)


def test_context_of_a_row_does_not_see_the_rows_below() -> None:
    """It sees everything else: all of the rows above, and its own."""
    torch.manual_seed(0)
    network = MaskedContext(4, Config(blocks=5, width=6, scale=1)).double()
    x = torch.randn(1, 4, 4, 4, dtype=torch.float64, requires_grad=True)
    (seen,) = torch.autograd.grad(network(x)[0, :, 2].sum(), x)
    assert torch.equal(seen[0, :, 3], torch.zeros(4, 4, dtype=torch.float64))
    assert bool((seen[0, :, :3] != 0).all())


def test_predictions_are_linear_in_the_context() -> None:
    torch.manual_seed(0)
    predictor = Predictor(4, 2, 3, Config(blocks=1, width=5, scale=0.1)).double()
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    contexts, weight = predictor.context(x), predictor.predict.weight[:, :, 0, 0]
    for number, predictions in enumerate(predictor(x)):
        rows = slice(2 * number, 2 * number + 2)
        expected = 0.1 * (weight[rows] @ contexts[1, :, 2, 0] + predictor.predict.bias[rows])
        torch.testing.assert_close(predictions[1, :, 2, 0], expected, rtol=1e-12, atol=1e-12)
