"""Losses that judge each pair by itself, against loops in float64: sigmoid, nce and invariant_spread."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cl.losses import invariant_spread, nce, sigmoid
from tests.support.losses import pairs, simclr
from tests.support.objective import l2_normalize


@pytest.fixture
def views() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return l2_normalize(6, 5).requires_grad_(), l2_normalize(6, 5).requires_grad_()


def assert_same(ours: Tensor, theirs: Tensor, views: tuple[Tensor, Tensor]) -> None:
    """Value and gradients."""
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    gradients = zip(torch.autograd.grad(ours, views), torch.autograd.grad(theirs, views), strict=True)
    for a, b in gradients:
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def sigmoid_loop(first: Tensor, second: Tensor) -> Tensor:
    """SigLIP, section 3.2, with bias -log K: each pair is classified by itself."""
    losses = []
    for positive, negatives in pairs(first, second):
        bias = math.log(len(negatives))
        loss = -(1 / (1 + torch.exp(-(positive - bias)))).log()
        for negative in negatives:
            loss = loss - (1 - 1 / (1 + torch.exp(-(negative - bias)))).log()
        losses.append(loss)
    return torch.stack(losses).mean()


def invariant_spread_loop(first: Tensor, second: Tensor) -> Tensor:
    """Invariant Spread: recognise the positive among all, and reject each negative."""
    losses = []
    for positive, negatives in pairs(first, second):
        total = positive.exp() + negatives.exp().sum()
        loss = -(positive.exp() / total).log()
        for negative in negatives:
            loss = loss - (1 - negative.exp() / total).log()
        losses.append(loss)
    return torch.stack(losses).mean()


@pytest.mark.parametrize(
    ("module", "loop"), [(sigmoid, sigmoid_loop), (invariant_spread, invariant_spread_loop)]
)
def test_value_and_gradient_equal_the_loop(views, module, loop) -> None:
    kind = module.__name__.rsplit(".", 1)[1]
    assert_same(module.loss(simclr(*views), module.Config(kind=kind), 0.0), loop(*views), views)


def test_nce_equals_the_posterior_of_data_against_noise(views) -> None:
    """The posterior h = P / (P + K / M), with P = exp(s) / Z and a given Z."""
    first, second = views
    candidates, normalizer = 1000, 1000 * 2.2
    theirs = []
    for positive, negatives in pairs(first, second):
        noise = len(negatives) / candidates
        probabilities = [x.exp() / normalizer for x in (positive, *negatives)]
        posteriors = [p / (p + noise) for p in probabilities]
        theirs.append(-posteriors[0].log() - sum((1 - h).log() for h in posteriors[1:]))
    log_normalizer = torch.tensor(math.log(normalizer / candidates), dtype=torch.float64)
    contrast = replace(simclr(first, second), log_normalizer=log_normalizer)
    ours = nce.loss(contrast, nce.Config(kind="nce"), 0.0)
    assert_same(ours, torch.stack(theirs).mean(), views)


def test_sigmoid_is_nce_with_a_normalizer_of_one(views) -> None:
    contrast = replace(simclr(*views), log_normalizer=torch.zeros((), dtype=torch.float64))
    one, other = (
        nce.loss(contrast, nce.Config(kind="nce"), 0.0),
        sigmoid.loss(contrast, sigmoid.Config(kind="sigmoid"), 0.0),
    )
    assert torch.equal(one, other)
