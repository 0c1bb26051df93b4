"""The log-partition: log-sum-exp of the logits of each query."""

import math

import torch
from torch import Tensor
from torch.autograd import Function

from cl.reductions.tiles import Groups, Tile, buffer_of, check_columns, over_selected, tiles_of

SAFE_BOUND = 40.0  # logits within +-40 may be shifted by their bound: exp(-80) does not underflow in float32


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
    check_columns(len(negatives), excluded, selected)
    if selected is not None:
        return over_selected(_log_sum_exp, queries, negatives, selected, temperature, groups)
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


def _log_sum_exp(logits: Tensor, absent: Tensor, rows: Tensor) -> Tensor:
    none = absent.all(1)
    masked = logits.masked_fill(absent & ~none[:, None], -math.inf)
    return masked.logsumexp(1).masked_fill(none, -math.inf)


def _mutual(excluded: Tensor | None) -> bool:
    """Whether column j is excluded for query i exactly where column i is for query j."""
    if excluded is None:
        return True
    n = len(excluded)
    rows = torch.arange(n, device=excluded.device)[:, None]
    return torch.equal(
        (rows * n + excluded).view(-1).sort().values, (excluded * n + rows).view(-1).sort().values
    )


def _exponentials(scaled: Tensor, negatives: Tensor, shift: Tensor, tile: Tile, buffer: Tensor) -> Tensor:
    """exp(q . k / temperature - shift) of one block in `buffer`; 0 where a column does not count.

    Args:
        scaled: (N, D), queries / temperature.
        shift: (N,) or (1,).
    """
    q, k = scaled[tile.rows], negatives[tile.columns]
    shift = shift[tile.rows, None] if len(shift) > 1 else shift
    x = buffer[: len(q) * len(k)].view(len(q), len(k))
    return tile.fill(torch.addmm(shift, q, k.T, beta=-1, out=x).exp_(), 0)


def _row_maxima(scaled: Tensor, negatives: Tensor, tiles: list[Tile], buffer: Tensor) -> Tensor:
    """(N,): the largest logit that counts, for logits too large to be shifted by their bound."""
    maxima = scaled.new_full((len(scaled),), -math.inf)
    for tile in tiles:
        q, k = scaled[tile.rows], negatives[tile.columns]
        x = torch.mm(q, k.T, out=buffer[: len(q) * len(k)].view(len(q), len(k)))
        maxima[tile.rows] = torch.maximum(maxima[tile.rows], tile.fill(x, -math.inf).amax(1))
    return maxima


class _Rectangular(Function):
    """Queries against other negatives."""

    @staticmethod
    def forward(ctx, queries, negatives, excluded, temperature, shift, groups):  # type: ignore[no-untyped-def]
        tiles = tiles_of(len(queries), len(negatives), excluded, groups, queries.device)
        buffer, scaled = buffer_of(queries, negatives), queries / temperature
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
        buffer, scaled = buffer_of(queries, negatives), queries / ctx.temperature
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


class _Symmetric(Function):
    """Embeddings against themselves: the blocks above the diagonal, each used for its mirror image too."""

    @staticmethod
    def forward(ctx, embeddings, excluded, temperature, bound, groups):  # type: ignore[no-untyped-def]
        n = len(embeddings)
        tiles = tiles_of(n, n, excluded, groups, embeddings.device)
        tiles = [tile for tile in tiles if tile.columns.start >= tile.rows.start]
        buffer, scaled = buffer_of(embeddings, embeddings), embeddings / temperature
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
        buffer, scaled = buffer_of(embeddings, embeddings), embeddings / ctx.temperature
        weight = (gradient / ctx.temperature / total).masked_fill(total == 0, 0)  # no negatives, no gradient
        result = torch.zeros_like(embeddings)
        for tile in ctx.tiles:
            x = _exponentials(scaled, embeddings, shift, tile, buffer)
            x *= weight[tile.rows, None] + weight[tile.columns]
            result[tile.rows].addmm_(x, embeddings[tile.columns])
            if tile.columns != tile.rows:
                result[tile.columns].addmm_(x.T, embeddings[tile.rows])
        return result, None, None, None, None
