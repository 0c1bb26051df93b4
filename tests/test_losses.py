"""Each loss against a loop written from its paper, in float64; limits; and what gradients must obey."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cl.analyses.npc import multiplier
from cl.config import kinds, module_of
from cl.contrast import Contrast
from cl.losses import cosine, dcl, dclw, infonce

TAU = 0.2


def unit(*shape: int) -> Tensor:
    return F.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


@pytest.fixture
def views() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return unit(6, 5), unit(6, 5)


def simclr(first: Tensor, second: Tensor, temperature: float = TAU) -> Contrast:
    """SimCLR's contrast, rows grouped by view."""
    z = torch.cat([first, second])
    itself = torch.arange(len(z))
    other = itself.roll(len(first))
    return Contrast(z, z[other, None], z, torch.stack([itself, other], 1), temperature=temperature)


def pairs(first: Tensor, second: Tensor):  # type: ignore[no-untyped-def]
    """For every anchor of SimCLR: the similarity of its positive, and of its 2(N - 1) negatives, over the temperature."""
    views = (first, second)
    for k in range(2):
        for i in range(len(first)):
            anchor = views[k][i]
            negatives = [anchor @ views[v][j] / TAU for v in range(2) for j in range(len(first)) if j != i]
            yield anchor @ views[1 - k][i] / TAU, torch.stack(negatives)


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
    return torch.stack([-positive + negatives.exp().sum().log() for positive, negatives in pairs(first, second)]).mean()


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


CASES = [
    (infonce, infonce.Config(kind="infonce", alpha=None), lambda a, b: infonce_loop(a, b, None)),
    (infonce, infonce.Config(kind="infonce", alpha=65536), lambda a, b: infonce_loop(a, b, 65536)),
    (infonce, infonce.Config(kind="infonce", alpha=3), lambda a, b: infonce_loop(a, b, 3)),
    (dcl, dcl.Config(kind="dcl"), dcl_loop),
    (dclw, dclw.Config(kind="dclw", sigma=0.5, detach_weight=True), lambda a, b: dclw_loop(a, b, 0.5, detach=True)),
    (dclw, dclw.Config(kind="dclw", sigma=0.5, detach_weight=False), lambda a, b: dclw_loop(a, b, 0.5, detach=False)),
]


@pytest.mark.parametrize(("module", "config", "loop"), CASES)
def test_value_and_gradient_equal_the_papers_loop(views, module, config, loop) -> None:
    first, second = (v.requires_grad_() for v in views)
    ours, theirs = module.loss(simclr(first, second), config, 0.0), loop(first, second)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for a, b in zip(torch.autograd.grad(ours, (first, second)), torch.autograd.grad(theirs, (first, second)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_cosine_is_the_squared_distance(views) -> None:
    first, second = views
    value = cosine.loss(Contrast(first, second[:, None], None), cosine.Config(kind="cosine"), 0.0)
    torch.testing.assert_close(value, (first - second).square().sum(1).mean())


def test_infonce_with_alpha_equal_to_the_count_is_plain(views) -> None:
    count = 2 * (len(views[0]) - 1)
    plain, margin = (
        infonce.loss(simclr(*views), infonce.Config(kind="infonce", alpha=alpha), 0.0) for alpha in (None, float(count))
    )
    torch.testing.assert_close(plain, margin, rtol=1e-14, atol=1e-14)


def test_dclw_tends_to_dcl_and_its_weights_have_mean_one(views) -> None:
    contrast = simclr(*views)
    wide = dclw.loss(contrast, dclw.Config(kind="dclw", sigma=1e6, detach_weight=True), 0.0)
    torch.testing.assert_close(wide, dcl.loss(contrast, dcl.Config(kind="dcl"), 0.0), rtol=1e-5, atol=1e-6)
    cosines = contrast.positive_logits() * TAU
    assert float(dclw._weights(cosines, 0.5, contrast).mean()) == pytest.approx(1, abs=1e-12)
    assert torch.isfinite(dclw._weights(cosines, 1e-2, contrast)).all()


def test_identical_keys_give_log_1_plus_k() -> None:
    q = unit(4, 5)
    key = unit(1, 5)
    contrast = Contrast(q, key.expand(4, 1, 5), key.expand(7, 5), temperature=TAU)
    assert float(infonce.loss(contrast, infonce.Config(kind="infonce", alpha=None), 0.0)) == pytest.approx(math.log(8))


def test_several_positives_give_the_mean_of_the_losses() -> None:
    q, positives, negatives = unit(4, 5), unit(4, 3, 5), unit(9, 5)
    for kind, settings in (("infonce", {"alpha": None}), ("dcl", {}), ("dclw", {"sigma": 0.5, "detach_weight": True})):
        module = module_of("losses", kind)
        config = module.Config(kind=kind, **settings)
        single = [module.loss(Contrast(q, positives[:, [p]], negatives, temperature=TAU), config, 0.0) for p in range(3)]
        together = module.loss(Contrast(q, positives, negatives, temperature=TAU), config, 0.0)
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
        contrast = Contrast(anchor, z[other[i]].view(1, 1, -1), keys, temperature=TAU)
        (plain,) = torch.autograd.grad(infonce.loss(contrast, infonce.Config(kind="infonce", alpha=None), 0.0), anchor)
        (decoupled,) = torch.autograd.grad(dcl.loss(contrast, dcl.Config(kind="dcl"), 0.0), anchor)
        torch.testing.assert_close(plain, q_b[i] * decoupled, rtol=1e-10, atol=1e-12)


def test_values_equal_lightlys() -> None:
    from lightly.loss import DCLLoss, DCLWLoss, NTXentLoss

    torch.manual_seed(1)
    first, second = unit(12, 16), unit(12, 16)
    contrast = simclr(first, second, 0.1)
    for ours, theirs in (
        (infonce.loss(contrast, infonce.Config(kind="infonce", alpha=None), 0.0), NTXentLoss(temperature=0.1)),
        (dcl.loss(contrast, dcl.Config(kind="dcl"), 0.0), DCLLoss(temperature=0.1)),
        (
            dclw.loss(contrast, dclw.Config(kind="dclw", sigma=0.5, detach_weight=True), 0.0),
            DCLWLoss(temperature=0.1, sigma=0.5),
        ),
    ):
        torch.testing.assert_close(ours, theirs(first, second), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", kinds("losses"))
def test_every_loss_says_whether_it_needs_negatives(kind, views) -> None:
    module = module_of("losses", kind)
    settings = {"infonce": {"alpha": None}, "dclw": {"sigma": 0.5, "detach_weight": True}}.get(kind, {})
    config = module.Config(kind=kind, **settings)
    without = Contrast(views[0], views[1][:, None], None)
    if config.needs_negatives:
        with pytest.raises(ValueError, match="loss=cosine"):
            module.loss(without, config, 0.0)
    else:
        assert module.loss(without, config, 0.0).ndim == 0
