"""The gradient and its bound by number of negatives, on samples whose answers are known."""

import math

import pytest
import torch

from cl.analyses import gradient_norm
from cl.analyses.gradient_norm import feasible_counts, samples
from cl.losses import infonce
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from tests.support.objective import l2_normalize

TAU = 0.2


def test_the_bound_of_the_gradient_depends_on_the_margin_alone() -> None:
    """EqCo, eq. 7, as a loop: on average over draws, it holds for any number of negatives."""
    contrast = Contrast(l2_normalize(5, 4), l2_normalize(5, 1, 4), Negatives(l2_normalize(300, 4)), TAU)
    draws = [next(samples(contrast, 300, TAU, torch.default_generator)) for _ in range(300)]
    for alpha in (2.0, 500.0):
        for row in range(5):
            positive = math.exp(contrast.queries[row] @ contrast.positives[row, 0] / TAU)
            similarities = contrast.negatives.rows @ contrast.queries[row] / TAU
            expected = sum(map(math.exp, similarities.tolist())) / 300
            bound = 2 / TAU * (1 - positive / (positive + alpha * expected))
            assert gradient_norm.bounds(draws[0], alpha, TAU)[row].item() == pytest.approx(bound, rel=1e-9)
        for count in (1, 20, 300):
            norms = torch.stack([gradient_norm.norms(draw, count, alpha, TAU) for draw in draws]).mean(0)
            bounds = torch.stack([gradient_norm.bounds(draw, alpha, TAU) for draw in draws]).mean(0)
            torch.testing.assert_close(bounds, gradient_norm.bounds(draws[0], alpha, TAU))
            assert (norms <= bounds).all()


@pytest.mark.parametrize("alpha", [None, 300.0])
def test_the_gradient_is_that_of_the_loss(alpha) -> None:
    """`cl.losses.infonce` on the same negatives, differentiated by autograd at the query as a free vector."""
    contrast = Contrast(
        l2_normalize(6, 5),
        l2_normalize(6, 1, 5),
        Negatives(l2_normalize(40, 5), torch.arange(6)[:, None]),
        TAU,
    )
    (sample,) = samples(contrast, 12, TAU, torch.default_generator)
    for count in (3, 12):
        queries = contrast.queries.clone().requires_grad_()
        negatives = Negatives(contrast.negatives.rows, selected=sample.columns[:, :count])
        chosen = Contrast(queries, contrast.positives, negatives, TAU)
        loss = infonce.loss(chosen, infonce.Config(kind="infonce", alpha=alpha, positives="each"), 0.0)
        (gradient,) = torch.autograd.grad(6 * loss, queries)
        a = alpha or count
        found = gradient_norm.norms(sample, count, a, TAU)
        torch.testing.assert_close(found, gradient.norm(dim=1))
        negative = sample.negative_logits[:, :count].logsumexp(1) + math.log(a / count)
        assert (found <= 2 / TAU * torch.sigmoid(negative - sample.positive_logits)).all()


def test_negatives_that_are_not_excluded_are_drawn_equally_often() -> None:
    contrast = Contrast(
        l2_normalize(30, 4),
        l2_normalize(30, 1, 4),
        Negatives(l2_normalize(50, 4), torch.stack([torch.arange(30), torch.arange(30) + 20], 1)),
    )
    drawn = torch.zeros(30, 50)
    for _ in range(400):
        for sample in samples(contrast, 7, 1.0, torch.default_generator):
            assert all(len(set(row)) == 7 for row in sample.columns.tolist())
            torch.testing.assert_close(
                sample.negative_logits[3], contrast.negatives.rows[sample.columns[3]] @ contrast.queries[3]
            )
            drawn.scatter_add_(1, sample.columns, torch.ones_like(sample.columns, dtype=torch.float32))
    assert drawn.gather(1, contrast.negatives.excluded).eq(0).all()
    rest = drawn[drawn > 0]
    assert len(rest) == 30 * 48
    assert rest.mean().item() == pytest.approx(400 * 7 / 48)
    assert rest.std().item() < 12, "equally often: sqrt(50) is expected"


def test_counts_that_exceed_the_negatives_are_left_out() -> None:
    assert feasible_counts([64, 16, 4], 19) == [4, 16]
    with pytest.raises(ValueError, match=r"negatives=\[64\] exceed the 19 per query"):
        feasible_counts([64], 19)
