"""The log-partition: log-sum-exp of the logits of each query."""

import math

import torch
from torch import Tensor
from torch.autograd import Function

from cl.objective.blocks import BlockwiseLogits, blockwise, exponentials, over_selected
from cl.objective.negatives import Negatives, with_fixed_temperature

SAFE_BOUND = 40.0  # logits within +-40 may be shifted by their bound: exp(-80) does not underflow in float32


def log_partition(queries: Tensor, negatives: Negatives, temperature: float | Tensor) -> Tensor:
    """Log-sum-exp of the logits of each query against the negatives that count, in memory linear in N and K.

    Z_i = log sum_k exp(q_i . k / temperature). The logits are computed block by block, and again in the
    backward pass, so an (N, K) matrix never exists; gradients to both sides are exact. If the queries are the
    negatives' rows and the exclusions are mutual, each block above the diagonal also serves as its mirror
    image.

    Args:
        queries: (N, D).
        temperature: a number or a scalar tensor, which receives its gradient.

    Returns:
        (N,) in the queries' dtype, nats; -inf for a query without negatives.
    """
    queries, negatives, temperature = with_fixed_temperature(queries, negatives, temperature)
    if negatives.selected is not None:
        return over_selected(_log_sum_exp, queries, negatives, temperature)
    bound, largest = _bound(queries, negatives, temperature)
    logits_of = blockwise(negatives, temperature, queries.device)
    if largest <= SAFE_BOUND and _symmetric(queries, negatives):
        return _SymmetricLogPartition.apply(queries, logits_of, largest)
    shift = bound if largest <= SAFE_BOUND else None
    return _LogPartition.apply(queries, negatives.rows, logits_of, shift)


def _bound(queries: Tensor, negatives: Negatives, temperature: float) -> tuple[Tensor | None, float]:
    """(N,), an upper bound on the logits of each query, and the largest of these bounds.

    None and infinity if finding them would make the CPU wait for a GPU.
    """
    if negatives.unit:
        return queries.new_full((len(queries),), 1 / temperature), 1 / temperature
    if queries.device.type != "cpu":
        return None, math.inf
    longest = negatives.rows.detach().norm(dim=1).max()
    bound = queries.detach().norm(dim=1) * longest / temperature  # Cauchy-Schwarz
    return bound, float(bound.max())


def _log_sum_exp(logits: Tensor, absent: Tensor, rows: Tensor) -> Tensor:
    none = absent.all(1)
    masked = logits.masked_fill(absent & ~none[:, None], -math.inf)
    return masked.logsumexp(1).masked_fill(none, -math.inf)


def _symmetric(queries: Tensor, negatives: Negatives) -> bool:
    """Whether the matrix of logits that count is known to be symmetric."""
    same_rows = queries is negatives.rows
    same_images = all(mask.queries is mask.rows for mask in negatives.masks)
    return same_rows and same_images and _mutual(negatives.excluded)


def _mutual(excluded: Tensor | None) -> bool:
    """Whether query i excludes column j if and only if query j excludes column i; False on a GPU."""
    if excluded is None:
        return True
    if excluded.device.type != "cpu":
        return False
    rows = torch.arange(len(excluded))[:, None]
    return all(bool((excluded[column] == rows).any(1).all()) for column in excluded.unbind(1))


def _row_maxima(logits: BlockwiseLogits) -> Tensor:
    """(N,): the largest logit that counts, the shift where a bound may be too far above the logits."""
    maxima = logits.queries.new_full((len(logits.queries),), -math.inf)
    for block in logits.blocks(None):
        maxima[block.rows] = torch.maximum(maxima[block.rows], block.fill(-math.inf).amax(1))
    return maxima


class _LogPartition(Function):
    """Z of queries against other rows.

    Its gradients are sums weighted by the softmax p_ik = exp(q_i . k / temperature - Z_i): dZ_i/dq_i = sum_k
    p_ik k / temperature, and to row k, sum_i dL/dZ_i p_ik q_i / temperature.
    """

    @staticmethod
    def forward(ctx, queries, rows, logits_of, shift):  # type: ignore[no-untyped-def]
        logits = logits_of(queries, rows)
        if shift is None:
            shift = _row_maxima(logits)
        total = torch.zeros_like(shift)
        for block in logits.blocks(shift):
            total[block.rows].add_(exponentials(block).sum(1))
        result = shift + total.log()
        ctx.logits_of = logits_of
        ctx.save_for_backward(queries, rows, result)
        return result

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        queries, rows, result = ctx.saved_tensors
        logits = ctx.logits_of(queries, rows)
        weight = gradient / logits.temperature
        gradients = logits.gradients(weight, result, exponentials, ctx.needs_input_grad[:2])
        return *gradients, None, None


class _SymmetricLogPartition(Function):
    """Z of embeddings against themselves: each block above the diagonal also serves as its mirror image."""

    @staticmethod
    def forward(ctx, embeddings, logits_of, bound):  # type: ignore[no-untyped-def]
        shift = embeddings.new_full((len(embeddings),), bound)
        total = torch.zeros_like(shift)
        for block in logits_of(embeddings, embeddings).blocks(shift, upper=True):
            x = exponentials(block)
            total[block.rows].add_(x.sum(1))
            if block.columns != block.rows:
                total[block.columns].add_(x.sum(0))
        ctx.logits_of = logits_of
        ctx.save_for_backward(embeddings, shift, total)
        return shift + total.log()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        embeddings, shift, total = ctx.saved_tensors
        logits = ctx.logits_of(embeddings, embeddings)
        weight = gradient / logits.temperature / total
        weight = weight.masked_fill(total == 0, 0)  # no negatives, no gradient
        result = torch.zeros_like(embeddings)
        for block in logits.blocks(shift, upper=True):
            x = exponentials(block)
            x *= torch.add(weight[block.rows, None], weight[block.columns], out=torch.empty_like(x))
            result[block.rows].addmm_(x, embeddings[block.columns])
            if block.columns != block.rows:
                result[block.columns].addmm_(x.T, embeddings[block.rows])
        return result, None, None
