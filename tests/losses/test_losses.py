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
from tests.support.losses import TAU, assert_same, pairs, simclr
from tests.support.objective import l2_normalize


@pytest.fixture
def views() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return l2_normalize(6, 5), l2_normalize(6, 5)


def infonce_loop(first: Tensor, second: Tensor, alpha: float | None) -> Tensor:
    """EqCo, eq. 1: the margin m = tau log(alpha / K) is taken off the positive."""
    losses = []
    for positive, negatives in pairs(first, second):
        margin = 0.0 if alpha is None else math.log(alpha / len(negatives))
        top = (positive - margin).exp()
        losses.append(-(top / (top + negatives.exp().sum())).log())
    return torch.stack(losses).mean()


def dcl_loop(first: Tensor, second: Tensor) -> Tensor:
    """DCL, eq. 5."""
    return torch.stack(
        [-positive + negatives.exp().sum().log() for positive, negatives in pairs(first, second)]
    ).mean()


def dclw_loop(first: Tensor, second: Tensor, sigma: float, *, detach: bool) -> Tensor:
    """DCL, eq. 6; the expectation is the mean over the images of the batch, the same for both views."""
    cosines = torch.stack([a @ b for a, b in zip(first, second, strict=True)])
    weights = 2 - (cosines / sigma).exp() / (cosines / sigma).exp().mean()
    if detach:
        weights = weights.detach()
    weights = torch.cat([weights, weights])
    return torch.stack(
        [
            -w * positive + negatives.exp().sum().log()
            for w, (positive, negatives) in zip(weights, pairs(first, second), strict=True)
        ]
    ).mean()


def sigmoid_loop(first: Tensor, second: Tensor) -> Tensor:
    """SigLIP, section 3.2, with bias -log K: each pair is classified by itself."""
    losses = []
    for positive, negatives in pairs(first, second):
        bias = math.log(len(negatives))
        accepted, rejected = (1 / (1 + torch.exp(-(logits - bias))) for logits in (positive, negatives))
        losses.append(-accepted.log() - (1 - rejected).log().sum())
    return torch.stack(losses).mean()


def invariant_spread_loop(first: Tensor, second: Tensor) -> Tensor:
    """Invariant Spread: recognise the positive among all, and reject each negative."""
    losses = []
    for positive, negatives in pairs(first, second):
        total = positive.exp() + negatives.exp().sum()
        losses.append(-(positive.exp() / total).log() - (1 - negatives.exp() / total).log().sum())
    return torch.stack(losses).mean()


PLAIN, DCL = infonce.Config(kind="infonce", alpha=None), dcl.Config(kind="dcl")
DCLW = dclw.Config(kind="dclw", sigma=0.5, detach_weight=True)
NCE, SIGMOID = nce.Config(kind="nce"), sigmoid.Config(kind="sigmoid")
CASES = [
    (infonce, PLAIN, lambda a, b: infonce_loop(a, b, None)),
    (infonce, infonce.Config(kind="infonce", alpha=65536), lambda a, b: infonce_loop(a, b, 65536)),
    (infonce, infonce.Config(kind="infonce", alpha=3), lambda a, b: infonce_loop(a, b, 3)),
    (dcl, DCL, dcl_loop),
    (dclw, DCLW, lambda a, b: dclw_loop(a, b, 0.5, detach=True)),
    (dclw, DCLW.model_copy(update={"detach_weight": False}), lambda a, b: dclw_loop(a, b, 0.5, detach=False)),
    (sigmoid, SIGMOID, sigmoid_loop),
    (invariant_spread, invariant_spread.Config(kind="invariant_spread"), invariant_spread_loop),
]


@pytest.mark.parametrize(("module", "config", "loop"), CASES)
def test_value_and_gradient_equal_the_papers_loop(views, module, config, loop) -> None:
    leaves = [view.requires_grad_() for view in views]
    assert_same(module.loss(simclr(*views), config, 0.0), loop(*views), leaves)


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


def test_nce_equals_the_posterior_of_data_against_noise(views) -> None:
    """The posterior h = P / (P + K / M), with P = exp(s) / Z and a given Z."""
    candidates, normalizer = 1000, 1000 * 2.2
    leaves, theirs = [view.requires_grad_() for view in views], []
    for positive, negatives in pairs(*views):
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
    return infonce.loss(contrast, infonce.Config(kind="infonce", alpha=alpha), 0.0)


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
