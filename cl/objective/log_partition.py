"""The log-partition: log-sum-exp of the logits of each query."""

import math

import torch
from torch import Tensor
from torch.autograd import Function

from cl.objective.blocks import Groups, Logits, exponentials
from cl.objective.columns import check_columns, over_selected
from cl.objective.ring import Sharded, local_rows
from cl.runtime.machine import to_device

SAFE_BOUND = 40.0  # logits within +-40 may be shifted by their bound: exp(-80) does not underflow in float32


def log_partition(
    queries: Tensor,
    negatives: Tensor | Sharded,
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
    check_columns(negatives, excluded, selected)
    rows, sharded = local_rows(negatives)
    if selected is not None:
        return over_selected(_log_sum_exp, queries, rows, selected, temperature, groups)
    bound, largest = _bound(queries, negatives, temperature, unit)
    same_side = queries is negatives and (groups is None or groups[0] is groups[1])
    symmetric = same_side and largest <= SAFE_BOUND and _mutual(excluded)
    if excluded is not None:
        excluded = to_device(excluded, queries.device)
    if symmetric:
        return _Symmetric.apply(queries, excluded, temperature, largest, groups)
    shift = bound if largest <= SAFE_BOUND else None
    return _Rectangular.apply(queries, rows, excluded, temperature, shift, groups, sharded)


def _bound(
    queries: Tensor, negatives: Tensor | Sharded, temperature: float, unit: bool
) -> tuple[Tensor | None, float]:
    """(N,), an upper bound on the logits of each query, and the largest of these bounds.

    None and infinity where the CPU would have to wait for a GPU to find them, or for other ranks.
    """
    if unit:
        return queries.new_full((len(queries),), 1 / temperature), 1 / temperature
    if isinstance(negatives, Sharded) or queries.device.type != "cpu":
        return None, math.inf
    longest = negatives.detach().norm(dim=1).max()
    bound = queries.detach().norm(dim=1) * longest / temperature  # Cauchy-Schwarz
    return bound, float(bound.max())


def _log_sum_exp(logits: Tensor, absent: Tensor, rows: Tensor) -> Tensor:
    none = absent.all(1)
    masked = logits.masked_fill(absent & ~none[:, None], -math.inf)
    return masked.logsumexp(1).masked_fill(none, -math.inf)


def _mutual(excluded: Tensor | None) -> bool:
    """Whether column j is excluded for query i exactly where column i is for query j; False if on a GPU."""
    if excluded is None:
        return True
    if excluded.device.type != "cpu":
        return False
    rows = torch.arange(len(excluded))[:, None]
    return all(bool((excluded[column] == rows).any(1).all()) for column in excluded.unbind(1))


def _row_maxima(logits: Logits) -> Tensor:
    """(N,): the largest logit that counts, for logits that may be too large to be shifted by a bound."""
    maxima = logits.queries.new_full((len(logits.queries),), -math.inf)
    for block in logits.blocks(None):
        maxima[block.rows] = torch.maximum(maxima[block.rows], block.fill(-math.inf).amax(1))
    return maxima


class _Rectangular(Function):
    """Queries against other negatives."""

    @staticmethod
    def forward(ctx, queries, negatives, excluded, temperature, shift, groups, sharded):  # type: ignore[no-untyped-def]
        ctx.options = excluded, temperature, groups, sharded
        logits = Logits(queries, negatives, *ctx.options)
        if shift is None:
            shift = _row_maxima(logits)
        total = torch.zeros_like(shift)
        for block in logits.blocks(shift):
            total[block.rows].add_(exponentials(block).sum(1))
        result = shift + total.log()
        ctx.save_for_backward(queries, negatives, result)
        return result

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        queries, negatives, result = ctx.saved_tensors
        logits = Logits(queries, negatives, *ctx.options)
        weight = gradient / logits.temperature
        gradients = logits.gradients(weight, result, exponentials, ctx.needs_input_grad[:2])
        return *gradients, None, None, None, None, None


class _Symmetric(Function):
    """Embeddings against themselves: the blocks above the diagonal, each used for its mirror image too."""

    @staticmethod
    def forward(ctx, embeddings, excluded, temperature, bound, groups):  # type: ignore[no-untyped-def]
        ctx.options = excluded, temperature, groups
        shift = embeddings.new_full((len(embeddings),), bound)
        total = torch.zeros_like(shift)
        for block in Logits(embeddings, embeddings, *ctx.options).blocks(shift, upper=True):
            x = exponentials(block)
            total[block.rows].add_(x.sum(1))
            if block.columns != block.rows:
                total[block.columns].add_(x.sum(0))
        ctx.save_for_backward(embeddings, shift, total)
        return shift + total.log()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        embeddings, shift, total = ctx.saved_tensors
        logits = Logits(embeddings, embeddings, *ctx.options)
        weight = (gradient / logits.temperature / total).masked_fill(
            total == 0, 0
        )  # no negatives, no gradient
        result = torch.zeros_like(embeddings)
        for block in logits.blocks(shift, upper=True):
            x = exponentials(block)
            x *= torch.add(weight[block.rows, None], weight[block.columns], out=torch.empty_like(x))
            result[block.rows].addmm_(x, embeddings[block.columns])
            if block.columns != block.rows:
                result[block.columns].addmm_(x.T, embeddings[block.rows])
        return result, None, None, None, None
