"""Which views share a forward pass."""

import torch
from torch import Tensor

from cl.networks.passes import in_passes
from tests.support.methods import views


def test_small_crops_of_one_size_share_a_pass() -> None:
    sizes = []

    def encode(x: Tensor) -> Tensor:
        sizes.append((len(x), x.shape[-1]))
        return x.mean((1, 2, 3))

    inputs = views(3, sizes=(12, 12, 8, 8, 6))
    encoded = in_passes(encode, inputs, separate=2)
    assert sizes == [(3, 12), (3, 12), (6, 8), (3, 6)]
    for view, value in zip(inputs, encoded, strict=True):
        torch.testing.assert_close(value, view.mean((1, 2, 3)))
