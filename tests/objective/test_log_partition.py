"""The log-partition against its dense form."""

import math

import pytest
import torch
from torch import Tensor

from benchmarks.memory import growth
from cl.objective import blocks
from cl.objective import log_partition as module
from cl.objective.log_partition import log_partition
from cl.objective.negatives import Negatives
from tests.support.objective import dense, exclusions, l2_normalize, masked

GROUPS = torch.tensor([0, 1, 1, 2, -5, 0, 3]), torch.tensor([0, 0, 1, 3, 3, 4, 1, -5, 4, 2, 0])


def assert_dense(queries: Tensor, negatives: Negatives, left_out: Tensor | None, temperature: float) -> None:
    """Values, and gradients to both sides, of a random weighting of the queries."""
    weight = torch.randn(len(queries), dtype=torch.float64)
    sides = {queries, negatives.rows}
    ours, theirs = (
        (value, *torch.autograd.grad((value * weight).sum(), sides))
        for value in (
            log_partition(queries, negatives, temperature),
            dense(queries, negatives.rows, left_out, temperature),
        )
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11 / min(temperature, 1.0))


@pytest.mark.parametrize("block", [4, 7, 1024])
@pytest.mark.parametrize(
    ("n", "k", "e", "temperature"),
    [(7, 11, 2, 1e-3), (5, 9, 0, 0.07), (9, 13, 1, 1.0), (8, 8, 3, 100.0), (1, 2, 1, 0.07), (5, 9, 0, 1e-3)],
)
def test_equals_the_dense_form(blocks_of, block, n, k, e, temperature) -> None:
    """K is not a multiple of the block."""
    blocks_of(block)
    queries, negatives = l2_normalize(n, 5).requires_grad_(), l2_normalize(k, 5).requires_grad_()
    excluded = exclusions(n, k, e) if e else None
    left_out = None if excluded is None else masked(n, k, excluded)
    assert_dense(queries, Negatives(negatives, excluded, unit=False), left_out, temperature)


@pytest.mark.parametrize("mutual", [True, False])
def test_queries_that_are_the_negatives(blocks_of, mutual) -> None:
    """Each block above the diagonal serves twice, but only where exclusions are mutual."""
    blocks_of(4)
    embeddings, itself = l2_normalize(10, 5).requires_grad_(), torch.arange(10)
    excluded = torch.stack([itself, itself ^ 1 if mutual else (itself + 3) % 10], 1)
    assert module._mutual(excluded) is mutual
    assert_dense(embeddings, Negatives(embeddings, excluded, unit=False), masked(10, 10, excluded), 0.2)


@pytest.mark.parametrize("temperature", [1e-3, 0.01, 0.07, 1.0, 100.0])
def test_float32_stays_near_float64(temperature) -> None:
    queries, negatives = l2_normalize(300, 32), l2_normalize(1500, 32)
    exact = dense(queries, negatives, None, temperature)
    ours = log_partition(queries.float(), Negatives(negatives.float(), unit=False), temperature)
    torch.testing.assert_close(ours.double(), exact, rtol=2e-6, atol=2e-5 / temperature)


def test_rows_that_are_not_unit() -> None:
    queries, negatives = 30 * l2_normalize(6, 4), 20 * l2_normalize(9, 4)
    sides = queries.requires_grad_(), Negatives(negatives.requires_grad_(), unit=False)
    assert_dense(*sides, None, 0.1)


def test_no_negative_that_counts_is_refused() -> None:
    rows, both = l2_normalize(2, 4), torch.tensor([[0, 1]] * 3)
    with pytest.raises(ValueError, match="no negatives remain"):
        Negatives(rows, both)
    with pytest.raises(ValueError, match="no negatives remain"):
        Negatives(rows, selected=torch.empty(3, 0, dtype=torch.int64))


def test_memory_is_linear() -> None:
    """16,384 x 8,192 logits would take 512 MiB; the process may not grow by a tenth of it."""
    z = l2_normalize(16384, 32, dtype=torch.float32).requires_grad_()
    negatives = Negatives(l2_normalize(8192, 32, dtype=torch.float32), unit=False)
    log_partition(z[:2048], negatives, 0.1).sum().backward()  # warm-up
    assert growth(lambda: log_partition(z, negatives, 0.1).sum().backward()) < 50 * 2**20


@pytest.mark.parametrize("block", [4, 1024])
@pytest.mark.parametrize("temperature", [1e-3, 0.2])
@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("way", ["neither", "excluded", "selected"])
def test_columns_that_do_not_count(monkeypatch, blocks_of, block, temperature, grouped, way) -> None:
    """A query counts all, all but some or only some of the columns, but none of its own group."""
    blocks_of(block)
    monkeypatch.setattr(blocks, "GATHERED", 40)
    queries, negatives = l2_normalize(7, 5).requires_grad_(), l2_normalize(11, 5).requires_grad_()
    chosen = exclusions(7, 11, 6 if way == "selected" else 2)
    left_out = (GROUPS[0][:, None] == GROUPS[1]) & grouped
    if way == "excluded":
        left_out = left_out | masked(7, 11, chosen)
    elif way == "selected":
        left_out = left_out | ~masked(7, 11, chosen)
    columns = {} if way == "neither" else {way: chosen}
    pair = GROUPS if grouped else None
    assert_dense(queries, Negatives(negatives, **columns, groups=pair, unit=False), left_out, temperature)


@pytest.mark.parametrize("block", [4, 1024])
@pytest.mark.parametrize("shift", [0, 1])
def test_groups_where_the_queries_are_the_negatives(blocks_of, block, shift) -> None:
    """Blocks above the diagonal serve twice here too, but not where rows have other groups as negatives."""
    blocks_of(block)
    embeddings, groups = l2_normalize(7, 5).requires_grad_(), GROUPS[0]
    of_rows = groups.roll(shift) if shift else groups
    negatives = Negatives(embeddings, groups=(groups, of_rows), unit=False)
    assert_dense(embeddings, negatives, groups[:, None] == of_rows, 0.2)


@pytest.mark.parametrize("way", ["neither", "selected", "symmetric"])
def test_a_query_whose_negatives_are_all_of_its_group_has_no_gradient(way) -> None:
    queries = l2_normalize(3, 5).requires_grad_()
    negatives = queries if way == "symmetric" else l2_normalize(3, 5).requires_grad_()
    one_group = torch.zeros(3, dtype=torch.int64)
    selected = torch.tensor([[0, 1]] * 3) if way == "selected" else None
    grouped = Negatives(negatives, selected=selected, groups=(one_group, one_group))
    value = log_partition(queries, grouped, 0.2)
    assert torch.equal(value, torch.full((3,), -math.inf, dtype=torch.float64))
    for gradient in torch.autograd.grad(value.sum(), {queries, negatives}):
        assert torch.equal(gradient, torch.zeros_like(gradient))
