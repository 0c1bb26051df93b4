"""The log-partition against its dense form."""

import math

import pytest
import torch
import torch.nn.functional as F

from cl.reductions import log_partition as module
from cl.reductions import tiles
from cl.reductions.log_partition import log_partition
from cl.reductions.sums import log_complement_sum, softplus_sum
from cl.runtime.memory import growth


def unit(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, dtype=dtype), dim=-1)


def dense(queries, negatives, excluded, temperature):  # type: ignore[no-untyped-def]
    """The plain form, with an (N, K) matrix."""
    logits = queries @ negatives.T / temperature
    if excluded is not None:
        logits = logits.scatter(1, excluded, -math.inf)
    return logits.logsumexp(1)


def exclusions(n: int, k: int, e: int) -> torch.Tensor:
    return torch.stack([torch.randperm(k)[:e] for _ in range(n)])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("tile", [4, 7, 1024])
@pytest.mark.parametrize(("n", "k", "e"), [(7, 11, 2), (5, 9, 0), (9, 13, 1), (8, 8, 3), (1, 2, 1)])
@pytest.mark.parametrize("temperature", [1e-3, 0.07, 1.0, 100.0])
def test_equals_the_dense_form(monkeypatch, tile, n, k, e, temperature) -> None:
    """K is not a multiple of the tile; values and gradients to both sides."""
    monkeypatch.setattr(tiles, "TILE", tile)
    queries, negatives = unit(n, 5).requires_grad_(), unit(k, 5).requires_grad_()
    excluded = exclusions(n, k, e) if e else None
    weight = torch.randn(n, dtype=torch.float64)
    results = []
    for form in (log_partition, dense):
        value = form(queries, negatives, excluded, temperature)
        results.append((value, *torch.autograd.grad((value * weight).sum(), (queries, negatives))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11 / temperature)


@pytest.mark.parametrize("mutual", [True, False])
def test_queries_that_are_the_negatives(monkeypatch, mutual) -> None:
    """Each block above the diagonal serves twice, but only where exclusions are mutual."""
    monkeypatch.setattr(tiles, "TILE", 4)
    n = 10
    embeddings = unit(n, 5).requires_grad_()
    itself = torch.arange(n)
    excluded = torch.stack([itself, itself ^ 1], 1) if mutual else torch.stack([itself, (itself + 3) % n], 1)
    assert module._mutual(excluded) is mutual
    weight = torch.randn(n, dtype=torch.float64)
    results = []
    for form in (log_partition, dense):
        value = form(embeddings, embeddings, excluded, 0.2)
        results.append((value, torch.autograd.grad((value * weight).sum(), embeddings)[0]))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_gradcheck() -> None:
    queries, negatives = unit(5, 4).requires_grad_(), unit(7, 4).requires_grad_()
    excluded = exclusions(5, 7, 2)
    assert torch.autograd.gradcheck(lambda q, k: log_partition(q, k, excluded, 0.3), (queries, negatives))


@pytest.mark.parametrize("temperature", [1e-3, 0.01, 0.07, 1.0, 100.0])
def test_float32_stays_near_float64(temperature) -> None:
    queries, negatives = unit(300, 32), unit(1500, 32)
    exact = dense(queries, negatives, None, temperature)
    ours = log_partition(queries.float(), negatives.float(), None, temperature)
    torch.testing.assert_close(ours.double(), exact, rtol=2e-6, atol=2e-5 / temperature)


def test_rows_that_are_not_unit() -> None:
    queries, negatives = 30 * unit(6, 4), 20 * unit(9, 4)
    torch.testing.assert_close(
        log_partition(queries, negatives, None, 0.1), dense(queries, negatives, None, 0.1)
    )


def test_selected_columns(monkeypatch) -> None:
    monkeypatch.setattr(tiles, "GATHERED", 40)
    queries, negatives = unit(6, 4).requires_grad_(), unit(9, 4).requires_grad_()
    selected = exclusions(6, 9, 3)
    value = log_partition(queries, negatives, None, 0.2, selected=selected)
    reference = (queries @ negatives.T / 0.2).gather(1, selected).logsumexp(1)
    torch.testing.assert_close(value, reference)
    for ours, theirs in zip(
        torch.autograd.grad(value.sum(), (queries, negatives)),
        torch.autograd.grad(reference.sum(), (queries, negatives)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_no_negative_that_counts_is_refused() -> None:
    queries, negatives = unit(3, 4), unit(2, 4)
    both = torch.tensor([[0, 1]] * 3)
    with pytest.raises(ValueError, match="no negatives remain"):
        log_partition(queries, negatives, both, 1.0)
    with pytest.raises(ValueError, match="no negatives remain"):
        log_partition(queries, negatives, None, 1.0, selected=torch.empty(3, 0, dtype=torch.int64))
    with pytest.raises(ValueError, match="not both"):
        log_partition(queries, negatives, both, 1.0, selected=both)


def test_memory_is_linear() -> None:
    """16,384 x 16,384 logits would take 1 GiB; the process may not grow by a tenth of it."""
    z = unit(16384, 128, dtype=torch.float32).requires_grad_()
    other = unit(16384, 128, dtype=torch.float32)
    log_partition(z[:2048], other[:2048], None, 0.1).sum().backward()  # warm-up
    assert growth(lambda: log_partition(z, other, None, 0.1).sum().backward()) < 100 * 2**20


def dense_without(queries, negatives, left_out, temperature):  # type: ignore[no-untyped-def]
    """The plain form without the columns of a mask (N, K)."""
    return (queries @ negatives.T / temperature).masked_fill(left_out, -math.inf).logsumexp(1)


GROUPS = torch.tensor([0, 1, 1, 2, -5, 0, 3]), torch.tensor([0, 0, 1, 3, 3, 4, 1, -5, 4, 2, 0])


@pytest.mark.parametrize("tile", [4, 1024])
@pytest.mark.parametrize("temperature", [1e-3, 0.2])
@pytest.mark.parametrize("way", ["neither", "excluded", "selected"])
def test_columns_of_the_querys_own_group_do_not_count(monkeypatch, tile, temperature, way) -> None:
    monkeypatch.setattr(tiles, "TILE", tile)
    monkeypatch.setattr(tiles, "GATHERED", 40)
    queries, negatives = unit(7, 5).requires_grad_(), unit(11, 5).requires_grad_()
    columns = exclusions(7, 11, 6 if way == "selected" else 2)
    left_out = GROUPS[0][:, None] == GROUPS[1]
    if way == "excluded":
        left_out = left_out.scatter(1, columns, True)
    elif way == "selected":
        left_out = left_out | torch.ones(7, 11, dtype=torch.bool).scatter(1, columns, False)
    arguments = {} if way == "neither" else {way: columns}
    value = log_partition(
        queries, negatives, arguments.pop("excluded", None), temperature, groups=GROUPS, **arguments
    )
    reference = dense_without(queries, negatives, left_out, temperature)
    torch.testing.assert_close(value, reference, rtol=1e-11, atol=1e-11)
    sides = (queries, negatives)
    for ours, theirs in zip(
        torch.autograd.grad(value.sum(), sides), torch.autograd.grad(reference.sum(), sides), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10 / temperature)


@pytest.mark.parametrize("tile", [4, 1024])
def test_groups_where_the_queries_are_the_negatives(monkeypatch, tile) -> None:
    """The blocks above the diagonal serve twice here too; one tensor of groups for both sides."""
    monkeypatch.setattr(tiles, "TILE", tile)
    embeddings = unit(7, 5).requires_grad_()
    groups = GROUPS[0]
    value = log_partition(embeddings, embeddings, None, 0.2, groups=(groups, groups))
    reference = dense_without(embeddings, embeddings, groups[:, None] == groups, 0.2)
    torch.testing.assert_close(value, reference)
    ours, theirs = (torch.autograd.grad(x.sum(), embeddings)[0] for x in (value, reference))
    torch.testing.assert_close(ours, theirs)


def test_rows_may_be_of_other_groups_as_queries_than_as_negatives() -> None:
    both = unit(7, 5)
    groups = GROUPS[0], GROUPS[0].roll(1)
    value = log_partition(both, both, None, 0.2, groups=groups)
    reference = dense_without(both, both, groups[0][:, None] == groups[1], 0.2)
    torch.testing.assert_close(value, reference, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("way", ["neither", "selected", "symmetric"])
def test_a_query_whose_negatives_are_all_of_its_group_has_no_gradient(way) -> None:
    queries = unit(3, 5).requires_grad_()
    negatives = queries if way == "symmetric" else unit(3, 5).requires_grad_()
    one_group = torch.zeros(3, dtype=torch.int64)
    selected = torch.tensor([[0, 1]] * 3) if way == "selected" else None
    value = log_partition(queries, negatives, None, 0.2, selected=selected, groups=(one_group, one_group))
    assert torch.equal(value, torch.full((3,), -math.inf, dtype=torch.float64))
    for gradient in torch.autograd.grad(value.sum(), {queries, negatives}):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def pointwise(name, logits, shift):  # type: ignore[no-untyped-def]
    """The summands, written out."""
    x = logits - shift[:, None]
    return (1 + x.exp()).log() if name == "softplus" else (1 - x.exp()).log()


SUMS = {"softplus": softplus_sum, "log_complement": log_complement_sum}


@pytest.fixture
def groups_of_images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(7) % 3, torch.arange(11) % 4


@pytest.mark.parametrize("tile", [4, 1024])
@pytest.mark.parametrize("columns", ["plain", "excluded", "selected", "padded", "groups", "selected groups"])
@pytest.mark.parametrize("name", SUMS)
def test_sums_equal_their_dense_form(monkeypatch, groups_of_images, name, columns, tile) -> None:
    """Values, and gradients to queries, negatives and shift; a column selected twice counts twice."""
    monkeypatch.setattr(tiles, "TILE", tile)
    monkeypatch.setattr(tiles, "GATHERED", 40)
    queries, negatives = unit(7, 5).requires_grad_(), unit(11, 5).requires_grad_()
    shift = (5.5 + torch.rand(7, dtype=torch.float64)).requires_grad_()  # above all logits, 1 / 0.2 at most
    weight = torch.randn(7, dtype=torch.float64)
    arguments: dict = {"excluded": None}
    counts = torch.ones(7, 11, dtype=torch.float64)
    if columns == "excluded":
        arguments["excluded"] = exclusions(7, 11, 3)
        counts.scatter_(1, arguments["excluded"], 0)
    if columns in ("selected", "padded", "selected groups"):
        selected = torch.randint(11, (7, 6))
        counts = torch.zeros(7, 11, dtype=torch.float64)
        if columns == "padded":
            selected[:, 4:] = -1
        for row, chosen in enumerate(selected.tolist()):
            for column in chosen:
                counts[row, column] += column >= 0
        arguments["selected"] = selected
    if "groups" in columns:
        arguments["groups"] = groups_of_images
        counts *= groups_of_images[0][:, None] != groups_of_images[1]
    ours = SUMS[name](queries, negatives, temperature=0.2, shift=shift, **arguments)
    theirs = (counts * pointwise(name, queries @ negatives.T / 0.2, shift)).sum(1)
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
    found = softplus_sum(queries, negatives, None, 1.0, torch.tensor([0.0, 30.0]).double())
    expected = [1000 + math.log1p(math.exp(-30)), 970 + math.log1p(math.exp(-60))]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)
    small = softplus_sum(queries, negatives[1:], None, 1.0, torch.zeros(2, dtype=torch.float64))
    expected = torch.full((2,), math.log1p(math.exp(-30)), dtype=torch.float64)
    torch.testing.assert_close(small, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", SUMS)
def test_sums_take_linear_memory(name) -> None:
    """4,096 x 16,384 numbers would take 256 MiB, and the dense form several times as much."""
    z = unit(4096, 128, dtype=torch.float32).requires_grad_()
    other = unit(16384, 128, dtype=torch.float32)
    shift = torch.full((4096,), 12.0)
    SUMS[name](z[:2048], other[:2048], None, 0.1, shift[:2048]).sum().backward()  # warm-up
    assert growth(lambda: SUMS[name](z, other, None, 0.1, shift).sum().backward()) < 50 * 2**20
