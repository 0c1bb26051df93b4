"""Each loss against a loop written from its paper, in float64; limits; and what gradients must obey."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cl.analyses.npc import multiplier
from cl.losses import cosine, dcl, dclw, infonce, invariant_spread, nce, sigmoid
from cl.objective.negatives import Negatives
from cl.objective.terms import Agreement, Contrast
from tests.support.losses import TAU, assert_same, logits_of, reference, simclr
from tests.support.objective import l2_normalize


@pytest.fixture
def views() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return l2_normalize(6, 5), l2_normalize(6, 5)


PLAIN, DCL = infonce.Config(kind="infonce", alpha=None, positives="each"), dcl.Config(kind="dcl")
DCLW = dclw.Config(kind="dclw", sigma=0.5, detach_weight=True)
NCE, SIGMOID = nce.Config(kind="nce"), sigmoid.Config(kind="sigmoid")
SPREAD = invariant_spread.Config(kind="invariant_spread")
CASES = [
    ("infonce", infonce, PLAIN),
    ("eqco", infonce, infonce.Config(kind="infonce", alpha=65536, positives="each")),
    ("dcl", dcl, DCL),
    ("dclw", dclw, DCLW),
    ("dclw", dclw, DCLW.model_copy(update={"detach_weight": False})),
    ("sigmoid", sigmoid, SIGMOID),
    ("invariant_spread", invariant_spread, SPREAD),
]


@pytest.mark.parametrize(("name", "module", "config"), CASES)
def test_value_and_gradient_equal_the_papers_formula(views, name, module, config) -> None:
    leaves, contrast = [view.requires_grad_() for view in views], simclr(*views)
    theirs = reference(name, logits_of(contrast), detach=getattr(config, "detach_weight", True))
    assert_same(module.loss(contrast, config, 0.0), theirs, leaves)


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
    found = invariant_spread.loss(contrast, SPREAD, 0.0)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=0)
    gradients = torch.autograd.grad(found, rows)[0][:, 0], torch.autograd.grad(expected, logits)[0]
    torch.testing.assert_close(gradients[0] * temperature, gradients[1].float(), rtol=1e-4, atol=1e-5)


def test_nce_equals_the_posterior_of_data_against_noise(views) -> None:
    """The posterior h = P / (P + K / M), with P = exp(s) / Z and a given Z."""
    candidates, normalizer = 1000, 1000 * 2.2
    leaves, theirs = [view.requires_grad_() for view in views], []
    for (positive,), negatives in logits_of(simclr(*views)):
        noise = len(negatives) / candidates
        probabilities = [x.exp() / normalizer for x in (positive, *negatives)]
        posteriors = [p / (p + noise) for p in probabilities]
        theirs.append(-posteriors[0].log() - sum((1 - h).log() for h in posteriors[1:]))
    log_normalizer = torch.tensor(math.log(normalizer / candidates), dtype=torch.float64)
    contrast = replace(simclr(*views), log_normalizer=log_normalizer)
    assert_same(nce.loss(contrast, NCE, 0.0), torch.stack(theirs).mean(), leaves)


def test_sigmoid_is_nce_with_a_normalizer_of_one(views) -> None:
    contrast = replace(simclr(*views), log_normalizer=torch.zeros((), dtype=torch.float64))
    assert torch.equal(nce.loss(contrast, NCE, 0.0), sigmoid.loss(contrast, SIGMOID, 0.0))


def test_cosine_is_the_squared_distance(views) -> None:
    first, second = views
    value = cosine.loss(Agreement(first, second[:, None]), cosine.Config(kind="cosine"), 0.0)
    torch.testing.assert_close(value, (first - second).square().sum(1).mean())


def test_dclw_tends_to_dcl_and_its_weights_have_mean_one(views) -> None:
    contrast = simclr(*views)
    wide = dclw.loss(contrast, dclw.Config(kind="dclw", sigma=1e6, detach_weight=True), 0.0)
    torch.testing.assert_close(wide, dcl.loss(contrast, DCL, 0.0), rtol=1e-5, atol=1e-6)
    cosines = contrast.positive_logits() * TAU
    assert float(dclw._weights(cosines, 0.5, contrast).mean()) == pytest.approx(1, abs=1e-12)
    assert torch.isfinite(dclw._weights(cosines, 1e-2, contrast)).all()


def test_dcl_gradient_is_infonces_divided_by_the_multiplier(views) -> None:
    """Anchor by anchor, with respect to the anchor (DCL, section 3.2)."""
    first, second = views
    z = torch.cat([first, second])
    other = torch.arange(len(z)).roll(len(first))
    q_b = multiplier(first, second, TAU)
    for i in range(len(z)):
        anchor = z[i : i + 1].clone().requires_grad_()
        keys = torch.stack([z[j] for j in range(len(z)) if j not in (i, int(other[i]))])
        contrast = Contrast(anchor, z[other[i]].view(1, 1, -1), Negatives(keys), TAU)
        (plain,) = torch.autograd.grad(infonce.loss(contrast, PLAIN, 0.0), anchor)
        (decoupled,) = torch.autograd.grad(dcl.loss(contrast, DCL, 0.0), anchor)
        torch.testing.assert_close(plain, q_b[i] * decoupled, rtol=1e-10, atol=1e-12)


def eqco(q: Tensor, key: Tensor, negatives: Tensor, alpha: float) -> Tensor:
    contrast = Contrast(q, key[:, None], Negatives(negatives), TAU)
    return infonce.loss(contrast, infonce.Config(kind="infonce", alpha=alpha, positives="each"), 0.0)


@pytest.mark.parametrize("alpha", [9.0, 3.0, 4096.0])
def test_eqcos_gradient_and_its_bound(alpha) -> None:
    """EqCo, eq. 11 as corrected and the bound of eq. 12, with respect to the normalised query."""
    torch.manual_seed(0)
    for _ in range(20):
        q, key, negatives = l2_normalize(1, 5).requires_grad_(), l2_normalize(1, 5), l2_normalize(9, 5)
        (gradient,) = torch.autograd.grad(eqco(q, key, negatives, alpha), q)
        with torch.no_grad():
            s0, s = ((q * key).sum() / TAU).exp(), (q @ negatives.T / TAU).exp()[0]
            total = s0 + alpha / 9 * s.sum()
            p0, p = s0 / total, alpha / 9 * s / total
            expected = (-(1 - p0) * key[0] + p @ negatives) / TAU
        torch.testing.assert_close(gradient[0], expected, rtol=1e-10, atol=1e-12)
        assert float(gradient.norm()) <= 2 / TAU * float(1 - p0) + 1e-12
