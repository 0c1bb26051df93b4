"""Invariant Spread against a loop over the pairs of embeddings."""

import pytest
import torch
from torch import Tensor

from cl.methods import BaseMethod
from tests.support.loops import assert_equals_the_loop, normal, projections
from tests.support.methods import TAU, build


def loop(method: BaseMethod, inputs: list[Tensor]) -> Tensor:
    """-log P(positive) - sum over other images of log(1 - P), with P a softmax over both.

    Each view against the first two, which are detached as keys; views of one size are encoded in one pass.
    """
    z, losses = [normal(x) for x in projections(method, inputs)], []
    fixed, n = [x.detach() for x in z[:2]], len(inputs[0])
    for b in range(2):
        for a in set(range(len(z))) - {b}:
            for i in range(n):
                positive = (z[a][i] @ fixed[b][i] / TAU).exp()
                others = [(z[a][i] @ keys[j] / TAU).exp() for keys in fixed for j in range(n) if j != i]
                total = positive + sum(others)
                losses.append(-(positive / total).log() - sum((1 - x / total).log() for x in others))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("sizes", [(12, 12), (12, 12, 8)], ids=len)
def test_it_equals_a_loop_over_pairs(sizes) -> None:
    """A small crop is a query against both large views, and neither a positive nor a negative."""
    assert_equals_the_loop(build("invariant_spread"), loop, sizes)
