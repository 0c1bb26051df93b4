"""Invariant Spread against a loop over the pairs of embeddings."""

import torch
from torch import Tensor

from cl.methods import BaseMethod
from tests.support.loops import assert_equals_the_loop, normal
from tests.support.methods import TAU, batch_of, build, views


def loop(method: BaseMethod, inputs: list[Tensor]) -> Tensor:
    """-log P(positive) - sum over other images of log(1 - P), with P a softmax over all other embeddings.

    Both views are encoded in one pass, and the second factor of each product is detached.
    """
    n = len(inputs[0])
    z = normal(method.projector(method.backbone(torch.stack(inputs, 1).flatten(0, 1))))  # two rows an image
    fixed = z.detach()
    losses = []
    for a in range(2 * n):
        others = [b for b in range(2 * n) if b != a]
        exponentials = {b: (z[a] @ fixed[b] / TAU).exp() for b in others}
        p = {b: exponentials[b] / sum(exponentials.values()) for b in others}
        positive = a + 1 if a % 2 == 0 else a - 1
        losses.append(-p[positive].log() - sum((1 - p[b]).log() for b in others if b != positive))
    return torch.stack(losses).mean()


def test_it_equals_a_loop_over_pairs() -> None:
    assert_equals_the_loop(build("invariant_spread"), loop)


def test_small_crops_are_queries_against_both_large_views() -> None:
    """A third view adds two contrasts, and neither a negative nor a positive of another query."""
    method = build("invariant_spread")
    inputs = views(5, sizes=(12, 12, 8))
    with_crop, without = method(batch_of(inputs)), method(batch_of(inputs[:2]))
    assert [len(term.negatives.rows) for term in with_crop] == [10] * 4
    small = normal(method.projector(method.backbone(inputs[2])))
    for target, term in ((0, with_crop[1]), (1, with_crop[3])):
        torch.testing.assert_close(term.queries, small)
        torch.testing.assert_close(term.positives, without[1 - target].queries[:, None].detach())
