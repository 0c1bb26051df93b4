"""The debiased and the hard-negative loss against the formulas of their papers, in float64."""

import pytest
import torch
import torch.nn.functional as F

from cl.losses import debiased
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from tests.support.losses import TAU, assert_same, logits_of, reference
from tests.support.objective import l2_normalize


def config(tau_plus: float, beta: float) -> debiased.Config:
    return debiased.Config(kind="debiased", tau_plus=tau_plus, beta=beta)


def contrasts() -> list[Contrast]:
    """One and three positives, without and with excluded columns; near positives make some g small."""
    torch.manual_seed(0)
    q, k = l2_normalize(6, 5), l2_normalize(9, 5)
    close = F.normalize(q[:, None] + 0.1 * l2_normalize(6, 1, 5), dim=-1)
    return [
        Contrast(q, l2_normalize(6, 1, 5), Negatives(k), TAU),
        Contrast(q, l2_normalize(6, 3, 5), Negatives(k, torch.arange(6)[:, None]), TAU),
        Contrast(q, close, Negatives(-q[:2]), TAU),
        Contrast(q, close, Negatives(torch.cat([k, q.mean(0, keepdim=True)])), 1.0),
        Contrast(close[:, 0], -close, Negatives(-q, torch.arange(6)[:, None]), TAU),
        Contrast(q[:1], -close[:1], Negatives(-q[:1] + 0), TAU),  # fewer false than all, yet below the least
    ]


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize(("name", "tau", "beta"), [("debiased", 0.1, 0.0), ("hard", 0.2, 0.7)])
def test_value_and_gradient_equal_the_formula(name, tau, beta, number) -> None:
    contrast = contrasts()[number]
    sides = [contrast.queries, contrast.positives, contrast.negatives.rows]
    leaves = [side.requires_grad_() for side in sides if side.is_leaf]
    theirs = reference(name, logits_of(contrast), contrast.temperature)
    unused = 0 * sum(leaf.sum() for leaf in leaves)
    assert_same(debiased.loss(contrast, config(tau, beta), 0.0), theirs + unused, leaves)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_float32_with_extreme_logits_is_finite(beta) -> None:
    """Negatives that are all opposite, all equal to the query, and a positive that is opposite."""
    q = torch.eye(3)
    for negatives, positives in ((-q[:1], q), (q[:1], -q), (q, q)):
        contrast = Contrast(q.clone().requires_grad_(), positives[:, None], Negatives(negatives), 0.01)
        value = debiased.loss(contrast, config(0.1, beta), 0.0)
        (gradient,) = torch.autograd.grad(value, contrast.queries)
        assert torch.isfinite(value)
        assert torch.isfinite(gradient).all()
