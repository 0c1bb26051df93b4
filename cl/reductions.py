"""Sums over negatives without a matrix of queries and negatives.

Three of them serve all losses: the log-sum-exp of the logits (InfoNCE and its relatives), the sum of
softplus(s - b) (losses that classify each pair by itself), and the sum of log(1 - exp(s - Z)) (Invariant
Spread). Each is computed block by block, in memory linear in N and K, with exact gradients.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from cl.runtime.machine import to_device

TILE = 1024  # side of the block of logits that exists at a time; 4 MiB in float32
GATHERED = 2**22  # numbers gathered at a time for per-query columns
SAFE_BOUND = 40.0  # logits within +-40 may be shifted by their bound: exp(-80) does not underflow in float32

Groups = tuple[Tensor, Tensor]  # (N,) of the queries, (K,) of the negatives


def log_partition(
    queries: Tensor,
    negatives: Tensor,
    excluded: Tensor | None,
    temperature: float,
    *,
    selected: Tensor | None = None,
    unit: bool = False,
    groups: Groups | None = None,
) -> Tensor:
    """Log-sum-exp of the logits of each query against the negatives that count, in memory linear in N and K.

    Z_i = log sum_k exp(q_i . k / temperature). The logits are computed block by block, and again in the
    backward pass, so an (N, K) matrix never exists; gradients to both sides are exact. Where `queries is
    negatives` and the exclusions are mutual, each block above the diagonal also serves its mirror image.

    Args:
        queries: (N, D).
        negatives: (K, D).
        excluded: (N, E) int64, distinct in a row: columns that do not count; None for none.
        selected: (N, S) int64: the only columns that count, as often as they occur, instead of `excluded`;
            -1 is padding.
        unit: promises that no row is longer than 1, which saves finding the largest norm.
        groups: (N,) and (K,) int64, of queries and negatives: a column of the query's own group does not
            count, whether excluded, selected or neither.

    Returns:
        (N,) in the queries' dtype, nats; -inf for a query whose negatives are all of its own group.

    Raises:
        ValueError: no columns remain after exclusion or selection, or both of these are given.
    """
    _check_columns(len(negatives), excluded, selected)
    if selected is not None:
        return _selected(_log_sum_exp, queries, negatives, selected, temperature, groups)
    bound, largest = _bound(queries, negatives, temperature, unit)
    same_side = queries is negatives and (groups is None or groups[0] is groups[1])
    if same_side and largest <= SAFE_BOUND and _mutual(excluded):
        return _Symmetric.apply(queries, excluded, temperature, largest, groups)
    shift = bound if largest <= SAFE_BOUND else None
    return _Rectangular.apply(queries, negatives, excluded, temperature, shift, groups)


def _bound(queries: Tensor, negatives: Tensor, temperature: float, unit: bool) -> tuple[Tensor, float]:
    """(N,), an upper bound on the logits of each query, and the largest of these bounds."""
    if unit:
        return queries.new_full((len(queries),), 1 / temperature), 1 / temperature
    longest = negatives.detach().norm(dim=1).max()
    bound = queries.detach().norm(dim=1) * longest / temperature  # Cauchy-Schwarz
    return bound, float(bound.max())


def softplus_sum(
    queries: Tensor,
    negatives: Tensor,
    excluded: Tensor | None,
    temperature: float,
    shift: Tensor,
    *,
    selected: Tensor | None = None,
    groups: Groups | None = None,
) -> Tensor:
    """(N,): sum over the negatives that count of softplus(q_i . k / temperature - shift_i).

    The arguments are those of `log_partition`, and `shift` (N,), which may carry a gradient. A query whose
    negatives are all of its own group has the sum 0.
    """
    _check_columns(len(negatives), excluded, selected)
    arguments = _SOFTPLUS, queries, negatives, excluded, selected, temperature, shift, groups
    return _sum(*arguments)


def log_complement_sum(
    queries: Tensor,
    negatives: Tensor,
    excluded: Tensor | None,
    temperature: float,
    shift: Tensor,
    *,
    selected: Tensor | None = None,
    groups: Groups | None = None,
) -> Tensor:
    """(N,): sum over the negatives that count of log(1 - exp(q_i . k / temperature - shift_i)).

    With the log-partition over all candidates as `shift`, exp(...) is the probability of a negative. The
    arguments are those of `softplus_sum`; every logit must be smaller than its shift.
    """
    _check_columns(len(negatives), excluded, selected)
    arguments = _LOG_COMPLEMENT, queries, negatives, excluded, selected, temperature, shift, groups
    return _sum(*arguments)


def _check_columns(negatives: int, excluded: Tensor | None, selected: Tensor | None) -> None:
    if selected is not None:
        if excluded is not None:
            raise ValueError("give excluded or selected columns, not both")
        if selected.shape[1] == 0:
            raise ValueError("no negatives remain: `selected` does not have any columns")
        return
    left = negatives - (0 if excluded is None else excluded.shape[1])
    if left < 1:
        raise ValueError(f"no negatives remain: of {negatives}, {max(left, 0)} are left after exclusion")


class _Pointwise(NamedTuple):
    """A function of a logit minus its shift, for autograd and in place, and its derivative in place."""

    plain: Callable[[Tensor], Tensor]
    value_: Callable[[Tensor], Tensor]
    derivative_: Callable[[Tensor], Tensor]


_exact_softplus = partial(
    F.softplus, threshold=40.0
)  # beyond the default of 20, softplus(x) = x errs by 2e-9
_SOFTPLUS = _Pointwise(_exact_softplus, _exact_softplus, torch.sigmoid_)
_LOG_COMPLEMENT = _Pointwise(
    lambda x: torch.log1p(-x.exp()),
    lambda x: x.exp_().neg_().log1p_(),
    lambda x: x.neg_().expm1_().neg_().reciprocal_(),  # -e^x / (1 - e^x) = 1 / (1 - e^-x)
)


def _sum(
    function: _Pointwise,
    queries: Tensor,
    negatives: Tensor,
    excluded: Tensor | None,
    selected: Tensor | None,
    temperature: float,
    shift: Tensor,
    groups: Groups | None,
) -> Tensor:
    if selected is None:
        return _PointwiseSum.apply(function, queries, negatives, excluded, temperature, shift, groups)

    def reduce(logits: Tensor, absent: Tensor, rows: Tensor) -> Tensor:
        x = (logits - shift[rows, None]).masked_fill(absent, -1)
        return function.plain(x).masked_fill(absent, 0).sum(1)

    return _selected(reduce, queries, negatives, selected, temperature, groups)


def _log_sum_exp(logits: Tensor, absent: Tensor, rows: Tensor) -> Tensor:
    none = absent.all(1)
    masked = logits.masked_fill(absent & ~none[:, None], -math.inf)
    return masked.logsumexp(1).masked_fill(none, -math.inf)


def _selected(
    reduce: Callable[[Tensor, Tensor, Tensor], Tensor],
    queries: Tensor,
    negatives: Tensor,
    selected: Tensor,
    temperature: float,
    groups: Groups | None,
) -> Tensor:
    """Per-query columns, a few rows at a time; negatives are gathered again in the backward pass.

    Args:
        reduce: (logits (n, S), which of them do not count (n, S), row numbers (n,)) to (n,).
    """

    def block(q: Tensor, k: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
        logits = torch.einsum("nd,nsd->ns", q, k[columns]).div(temperature)
        absent = columns < 0  # (n, S)
        if groups is not None:
            absent = absent | (groups[0][rows, None] == groups[1][columns])
        return reduce(logits, absent, rows)

    size = max(1, GATHERED // (selected.shape[1] * queries.shape[1]))
    rows = torch.arange(len(queries), device=queries.device).split(size)
    blocks = zip(queries.split(size), selected.split(size), rows, strict=True)
    return torch.cat(
        [checkpoint(block, q, negatives, columns, r, use_reentrant=False) for q, columns, r in blocks]
    )


class _Tile(NamedTuple):
    """One block of the matrix of logits, and which of its entries do not count.

    excluded: flat positions. groups: those of its rows and of its columns.
    """

    rows: slice
    columns: slice
    excluded: Tensor | None
    groups: Groups | None

    def fill(self, x: Tensor, value: float) -> Tensor:
        """Overwrite what does not count in the block `x` (rows, columns), in place."""
        if self.excluded is not None:
            x.view(-1).index_fill_(0, self.excluded, value)
        if self.groups is not None:
            x.masked_fill_(self.groups[0][:, None] == self.groups[1], value)
        return x


def _tiles(
    n: int, k: int, excluded: Tensor | None, groups: Groups | None, device: torch.device
) -> list[_Tile]:
    """The blocks of an (n, k) matrix, row by row."""
    starts = [(row, column) for row in range(0, n, TILE) for column in range(0, k, TILE)]
    positions = [None] * len(starts) if excluded is None else _positions(n, k, excluded, device)
    tiles = []
    for (row, column), where in zip(starts, positions, strict=True):
        rows, columns = slice(row, min(row + TILE, n)), slice(column, min(column + TILE, k))
        inside = None if groups is None else (groups[0][rows], groups[1][columns])
        tiles.append(_Tile(rows, columns, where, inside))
    return tiles


def _positions(n: int, k: int, excluded: Tensor, device: torch.device) -> list[Tensor | None]:
    """The flat positions of the excluded columns in each block, sorted by block once: one fill per block."""
    across, excluded = math.ceil(k / TILE), excluded.cpu()
    rows = torch.arange(n)[:, None].expand_as(excluded).reshape(-1)
    columns = excluded.reshape(-1)
    tile, order = ((rows // TILE) * across + columns // TILE).sort()
    rows, columns = rows[order], columns[order]
    width = (k - columns // TILE * TILE).clamp(max=TILE)
    counts = torch.bincount(tile, minlength=math.ceil(n / TILE) * across).tolist()
    positions = to_device((rows % TILE) * width + columns % TILE, device)
    return [where if len(where) else None for where in positions.split(counts)]


def _mutual(excluded: Tensor | None) -> bool:
    """Whether column j is excluded for query i exactly where column i is for query j."""
    if excluded is None:
        return True
    n = len(excluded)
    rows = torch.arange(n, device=excluded.device)[:, None]
    return torch.equal(
        (rows * n + excluded).view(-1).sort().values, (excluded * n + rows).view(-1).sort().values
    )


def _exponentials(scaled: Tensor, negatives: Tensor, shift: Tensor, tile: _Tile, buffer: Tensor) -> Tensor:
    """exp(q . k / temperature - shift) of one block in `buffer`; 0 where a column does not count.

    Args:
        scaled: (N, D), queries / temperature.
        shift: (N,) or (1,).
    """
    q, k = scaled[tile.rows], negatives[tile.columns]
    shift = shift[tile.rows, None] if len(shift) > 1 else shift
    x = buffer[: len(q) * len(k)].view(len(q), len(k))
    return tile.fill(torch.addmm(shift, q, k.T, beta=-1, out=x).exp_(), 0)


def _row_maxima(scaled: Tensor, negatives: Tensor, tiles: list[_Tile], buffer: Tensor) -> Tensor:
    """(N,): the largest logit that counts, for logits too large to be shifted by their bound."""
    maxima = scaled.new_full((len(scaled),), -math.inf)
    for tile in tiles:
        q, k = scaled[tile.rows], negatives[tile.columns]
        x = torch.mm(q, k.T, out=buffer[: len(q) * len(k)].view(len(q), len(k)))
        maxima[tile.rows] = torch.maximum(maxima[tile.rows], tile.fill(x, -math.inf).amax(1))
    return maxima


def _buffer(queries: Tensor, negatives: Tensor) -> Tensor:
    return queries.new_empty(min(TILE, len(queries)) * min(TILE, len(negatives)))


class _Rectangular(Function):
    """Queries against other negatives."""

    @staticmethod
    def forward(ctx, queries, negatives, excluded, temperature, shift, groups):  # type: ignore[no-untyped-def]
        tiles = _tiles(len(queries), len(negatives), excluded, groups, queries.device)
        buffer, scaled = _buffer(queries, negatives), queries / temperature
        if shift is None:
            shift = _row_maxima(scaled, negatives, tiles, buffer)
        total = torch.zeros_like(shift)
        for tile in tiles:
            total[tile.rows] += _exponentials(scaled, negatives, shift, tile, buffer).sum(1)
        result = shift + total.log()
        ctx.save_for_backward(queries, negatives, result)
        ctx.tiles, ctx.temperature = tiles, temperature
        return result

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        queries, negatives, result = ctx.saved_tensors
        buffer, scaled = _buffer(queries, negatives), queries / ctx.temperature
        weight = (gradient / ctx.temperature)[:, None]
        weighted = queries * weight
        to_queries = torch.zeros_like(queries) if ctx.needs_input_grad[0] else None
        to_negatives = torch.zeros_like(negatives) if ctx.needs_input_grad[1] else None
        for tile in ctx.tiles:
            softmax = _exponentials(scaled, negatives, result, tile, buffer)
            if to_queries is not None:
                to_queries[tile.rows].addmm_(softmax, negatives[tile.columns])
            if to_negatives is not None:
                to_negatives[tile.columns].addmm_(softmax.T, weighted[tile.rows])
        if to_queries is not None:
            to_queries.mul_(weight)
        return to_queries, to_negatives, None, None, None, None


class _PointwiseSum(Function):
    """Sum over the negatives of a function of each logit minus its query's shift."""

    @staticmethod
    def forward(ctx, function, queries, negatives, excluded, temperature, shift, groups):  # type: ignore[no-untyped-def]
        tiles = _tiles(len(queries), len(negatives), excluded, groups, queries.device)
        buffer, scaled = _buffer(queries, negatives), queries / temperature
        total = queries.new_zeros(len(queries))
        for tile in tiles:
            x = function.value_(_shifted(scaled, negatives, shift, tile, buffer))
            total[tile.rows] += tile.fill(x, 0).sum(1)
        ctx.save_for_backward(queries, negatives, shift)
        ctx.function, ctx.tiles, ctx.temperature = function, tiles, temperature
        return total

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        queries, negatives, shift = ctx.saved_tensors
        buffer, scaled = _buffer(queries, negatives), queries / ctx.temperature
        weighted = queries * (gradient / ctx.temperature)[:, None]
        to_queries = torch.zeros_like(queries) if ctx.needs_input_grad[1] else None
        to_negatives = torch.zeros_like(negatives) if ctx.needs_input_grad[2] else None
        to_shift = torch.zeros_like(shift)
        for tile in ctx.tiles:
            x = ctx.function.derivative_(_shifted(scaled, negatives, shift, tile, buffer))
            tile.fill(x, 0)
            to_shift[tile.rows] -= x.sum(1)
            if to_queries is not None:
                to_queries[tile.rows].addmm_(x, negatives[tile.columns])
            if to_negatives is not None:
                to_negatives[tile.columns].addmm_(x.T, weighted[tile.rows])
        if to_queries is not None:
            to_queries.mul_((gradient / ctx.temperature)[:, None])
        return None, to_queries, to_negatives, None, None, to_shift * gradient, None


def _shifted(scaled: Tensor, negatives: Tensor, shift: Tensor, tile: _Tile, buffer: Tensor) -> Tensor:
    """The logits of one block minus their queries' shifts, in `buffer`; -1 where a column does not count."""
    q, k = scaled[tile.rows], negatives[tile.columns]
    x = buffer[: len(q) * len(k)].view(len(q), len(k))
    return tile.fill(torch.addmm(shift[tile.rows, None], q, k.T, beta=-1, out=x), -1)


class _Symmetric(Function):
    """Embeddings against themselves: the blocks above the diagonal, each used for its mirror image too."""

    @staticmethod
    def forward(ctx, embeddings, excluded, temperature, bound, groups):  # type: ignore[no-untyped-def]
        n = len(embeddings)
        tiles = _tiles(n, n, excluded, groups, embeddings.device)
        tiles = [tile for tile in tiles if tile.columns.start >= tile.rows.start]
        buffer, scaled = _buffer(embeddings, embeddings), embeddings / temperature
        shift = embeddings.new_tensor([bound])
        total = embeddings.new_zeros(n)
        for tile in tiles:
            x = _exponentials(scaled, embeddings, shift, tile, buffer)
            total[tile.rows] += x.sum(1)
            if tile.columns != tile.rows:
                total[tile.columns] += x.sum(0)
        ctx.save_for_backward(embeddings, shift, total)
        ctx.tiles, ctx.temperature = tiles, temperature
        return shift + total.log()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        embeddings, shift, total = ctx.saved_tensors
        buffer, scaled = _buffer(embeddings, embeddings), embeddings / ctx.temperature
        weight = (gradient / ctx.temperature / total).masked_fill(total == 0, 0)  # no negatives, no gradient
        result = torch.zeros_like(embeddings)
        for tile in ctx.tiles:
            x = _exponentials(scaled, embeddings, shift, tile, buffer)
            x *= weight[tile.rows, None] + weight[tile.columns]
            result[tile.rows].addmm_(x, embeddings[tile.columns])
            if tile.columns != tile.rows:
                result[tile.columns].addmm_(x.T, embeddings[tile.rows])
        return result, None, None, None, None
