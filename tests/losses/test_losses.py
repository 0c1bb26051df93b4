"""Each loss against a loop written from its paper, in float64; limits; and what gradients must obey."""

import math

import pytest
import torch
from torch import Tensor

from cl.analyses.npc import multiplier
from cl.losses import cosine, dcl, dclw, infonce
from cl.objective.negatives import Negatives
from cl.objective.terms import Agreement, Contrast
from tests.support.losses import TAU, pairs, simclr
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


PLAIN, DCL = infonce.Config(kind="infonce", alpha=None), dcl.Config(kind="dcl")
DCLW = dclw.Config(kind="dclw", sigma=0.5, detach_weight=True)
CASES = [
    (infonce, PLAIN, lambda a, b: infonce_loop(a, b, None)),
    (infonce, infonce.Config(kind="infonce", alpha=65536), lambda a, b: infonce_loop(a, b, 65536)),
    (infonce, infonce.Config(kind="infonce", alpha=3), lambda a, b: infonce_loop(a, b, 3)),
    (dcl, DCL, dcl_loop),
    (dclw, DCLW, lambda a, b: dclw_loop(a, b, 0.5, detach=True)),
    (
        dclw,
        DCLW.model_copy(update={"detach_weight": False}),
        lambda a, b: dclw_loop(a, b, 0.5, detach=False),
    ),
]


@pytest.mark.parametrize(("module", "config", "loop"), CASES)
def test_value_and_gradient_equal_the_papers_loop(views, module, config, loop) -> None:
    first, second = (v.requires_grad_() for v in views)
    ours, theirs = module.loss(simclr(first, second), config, 0.0), loop(first, second)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(ours, (first, second)), torch.autograd.grad(theirs, (first, second)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


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


def test_several_positives_give_the_mean_of_the_losses() -> None:
    q, positives, negatives = l2_normalize(4, 5), l2_normalize(4, 3, 5), l2_normalize(9, 5)
    for module, config in ((infonce, PLAIN), (dcl, DCL), (dclw, DCLW)):
        single = [
            module.loss(Contrast(q, positives[:, [p]], Negatives(negatives), TAU), config, 0.0)
            for p in range(3)
        ]
        together = module.loss(Contrast(q, positives, Negatives(negatives), TAU), config, 0.0)
        torch.testing.assert_close(together, torch.stack(single).mean())


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


def test_values_equal_lightlys() -> None:
    from lightly.loss import DCLLoss, DCLWLoss, NTXentLoss

    torch.manual_seed(1)
    first, second = l2_normalize(12, 16), l2_normalize(12, 16)
    contrast = simclr(first, second, 0.1)
    for module, config, theirs in (
        (infonce, PLAIN, NTXentLoss(temperature=0.1)),
        (dcl, DCL, DCLLoss(temperature=0.1)),
        (dclw, DCLW, DCLWLoss(temperature=0.1, sigma=0.5)),
    ):
        ours = module.loss(contrast, config, 0.0)
        torch.testing.assert_close(ours, theirs(first, second), rtol=1e-9, atol=1e-9)


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


def test_with_two_images_a_query_has_two_negatives() -> None:
    """N = 2: the denominator of SimCLR's DCL has exactly the other image's two views."""
    torch.manual_seed(0)
    first, second = l2_normalize(2, 5), l2_normalize(2, 5)
    contrast = simclr(first, second)
    assert contrast.negative_counts.tolist() == [2.0] * 4
    expected = ((first[0] @ first[1] / TAU).exp() + (first[0] @ second[1] / TAU).exp()).log()
    torch.testing.assert_close(contrast.negative_log_partition()[0], expected)
