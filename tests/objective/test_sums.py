"""The sums over negatives against their dense forms."""

import math

import pytest
import torch

from benchmarks.memory import growth
from cl.objective import blocks
from cl.objective.negatives import Negatives
from cl.objective.sums import softplus_sum
from tests.support.objective import SUMS, dense_sum, exclusions, l2_normalize


@pytest.fixture
def groups_of_images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(7) % 3, torch.arange(11) % 4


@pytest.mark.parametrize("block", [4, 1024])
@pytest.mark.parametrize("way", ["plain", "excluded", "selected", "padded", "groups", "selected groups"])
@pytest.mark.parametrize("name", SUMS)
def test_sums_equal_their_dense_form(monkeypatch, blocks_of, groups_of_images, name, way, block) -> None:
    """Values, and gradients to queries, negatives and shift; a column selected twice counts twice."""
    blocks_of(block)
    monkeypatch.setattr(blocks, "GATHERED", 40)
    queries, negatives = l2_normalize(7, 5).requires_grad_(), l2_normalize(11, 5).requires_grad_()
    shift = (5.5 + torch.rand(7, dtype=torch.float64)).requires_grad_()  # above all logits, 1 / 0.2 at most
    weight = torch.randn(7, dtype=torch.float64)
    columns = {}
    counts = torch.ones(7, 11, dtype=torch.float64)
    if way == "excluded":
        columns["excluded"] = exclusions(7, 11, 3)
        counts.scatter_(1, columns["excluded"], 0)
    if way in ("selected", "padded", "selected groups"):
        selected = torch.randint(11, (7, 6))
        counts = torch.zeros(7, 11, dtype=torch.float64)
        if way == "padded":
            selected[:, 4:] = -1
        for row, chosen in enumerate(selected.tolist()):
            for column in chosen:
                counts[row, column] += column >= 0
        columns["selected"] = selected
    if "groups" in way:
        columns["groups"] = groups_of_images
        counts *= groups_of_images[0][:, None] != groups_of_images[1]
    ours = SUMS[name](queries, Negatives(negatives, **columns), 0.2, shift)
    theirs = dense_sum(name, queries @ negatives.T / 0.2, shift, counts)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    sides = queries, negatives, shift
    for one, other in zip(
        torch.autograd.grad((ours * weight).sum(), sides),
        torch.autograd.grad((theirs * weight).sum(), sides),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_softplus_of_large_and_small_logits() -> None:
    """Exact where log(1 + exp(x)) overflows, and where it is nearly 0."""
    queries = torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    negatives = torch.tensor([[1000.0], [-30.0]], dtype=torch.float64)
    found = softplus_sum(queries, Negatives(negatives), 1.0, torch.tensor([0.0, 30.0]).double())
    expected = [1000 + math.log1p(math.exp(-30)), 970 + math.log1p(math.exp(-60))]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)
    small = softplus_sum(queries, Negatives(negatives[1:]), 1.0, torch.zeros(2, dtype=torch.float64))
    expected = torch.full((2,), math.log1p(math.exp(-30)), dtype=torch.float64)
    torch.testing.assert_close(small, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", SUMS)
def test_sums_take_linear_memory(name) -> None:
    """4,096 x 8,192 numbers would take 128 MiB, and the dense form several times as much."""
    z = l2_normalize(4096, 32, dtype=torch.float32).requires_grad_()
    other = Negatives(l2_normalize(8192, 32, dtype=torch.float32))
    shift = torch.full((4096,), 12.0)
    SUMS[name](z[:1024], other, 0.1, shift[:1024]).sum().backward()  # warm-up
    assert growth(lambda: SUMS[name](z, other, 0.1, shift).sum().backward()) < 30 * 2**20
