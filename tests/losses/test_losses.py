"""Losses where numbers overflow or cancel, and the ratio of two gradients; test_modules compares values."""

import pytest
import torch

import cl
from cl.analyses.npc import multiplier
from cl.losses import dcl, infonce, invariant_spread
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from tests.support.losses import TAU
from tests.support.objective import l2_normalize


@pytest.mark.parametrize("temperature", [0.05, 0.02])
@pytest.mark.parametrize("cosines", [(0.9, 0.3, 0.2), (0.9, 0.9, 0.1), (0.9, -1.0, -1.0)])
def test_invariant_spread_survives_a_negative_that_is_nearly_certain(cosines, temperature) -> None:
    """Also in float32, where 1 - P would be 0; here, log(1 - P) is a log-softmax over the others."""
    logits = torch.tensor([-0.1, *cosines]).double().div(temperature).requires_grad_()
    total = logits.logsumexp(0)
    rejected = [torch.cat([logits[:k], logits[k + 1 :]]).logsumexp(0) - total for k in range(1, 4)]
    expected = total - logits[0] - torch.stack(rejected).sum()
    rows = torch.tensor([-0.1, *cosines])[:, None].requires_grad_()
    contrast = Contrast(torch.ones(1, 1), rows[None, :1], Negatives(rows[1:]), temperature)
    found = invariant_spread.loss(contrast, invariant_spread.Config(kind="invariant_spread"), 0.0)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=0)
    gradients = torch.autograd.grad(found, rows)[0][:, 0], torch.autograd.grad(expected, logits)[0]
    torch.testing.assert_close(gradients[0] * temperature, gradients[1].float(), rtol=1e-4, atol=1e-5)


def test_a_small_sigma_of_dclw_does_not_overflow() -> None:
    """In float32, where exp(1 / sigma) would be infinite."""
    assert torch.isfinite(cl.DCLWLoss(sigma=1e-2)(torch.eye(3), torch.eye(3)))


def test_dcl_gradient_is_infonces_divided_by_the_multiplier() -> None:
    """Anchor by anchor, with respect to the anchor (DCL, section 3.2)."""
    first, second = l2_normalize(6, 5), l2_normalize(6, 5)
    plain_config = infonce.Config(kind="infonce", alpha=None, positives="each")
    z = torch.cat([first, second])
    other = torch.arange(len(z)).roll(len(first))
    q_b = multiplier(first, second, TAU)
    for i in range(len(z)):
        anchor = z[i : i + 1].clone().requires_grad_()
        keys = torch.stack([z[j] for j in range(len(z)) if j not in (i, int(other[i]))])
        contrast = Contrast(anchor, z[other[i]].view(1, 1, -1), Negatives(keys), TAU)
        (plain,) = torch.autograd.grad(infonce.loss(contrast, plain_config, 0.0), anchor)
        (decoupled,) = torch.autograd.grad(dcl.loss(contrast, dcl.Config(kind="dcl"), 0.0), anchor)
        torch.testing.assert_close(plain, q_b[i] * decoupled, rtol=1e-10, atol=1e-12)
