"""Batch norm over batch-norm groups, in operations that exist on every device: the reference."""

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from cl.runtime.distributed import processes, summed


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, groups: int, *, spans: bool
) -> tuple[Tensor, Tensor]:
    """Normalise each batch-norm group of the rows, then scale and shift.

    Args:
        x: (n, C, ...), this rank's rows.
        weight, bias: (C,), or both None.
        groups: the number of batch-norm groups, all of equal size.
        spans: whether the groups divide the rows of all ranks and span ranks; a single group may have
            different numbers of rows on each rank. Otherwise, the groups divide `x`.

    Returns:
        The normalised rows (n, C, ...); means and unbiased variances (2, G, C) of the G batch-norm groups,
        the same on all ranks if these span them.
    """
    if spans:
        return _Spanning.apply(x, weight, bias, eps, groups)
    if torch.compiler.is_compiling() and groups > 1:
        return _at_once(x, weight, bias, eps, groups)
    statistics = x.new_zeros(2, groups, x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32))
    parts = [
        F.batch_norm(part, mean, variance, weight, bias, True, 1.0, eps)
        for part, mean, variance in zip(x.chunk(groups), *statistics, strict=True)
    ]
    return parts[0] if groups == 1 else torch.cat(parts), statistics


def _at_once(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, groups: int
) -> tuple[Tensor, Tensor]:
    """The same for all groups at once: the compiler fuses it into a few kernels, for any number of groups."""
    parts = x.unflatten(0, (groups, -1)).to(torch.promote_types(x.dtype, torch.float32))
    over = [1, *range(3, parts.ndim)]
    count = parts[0].numel() // x.shape[1]
    variances, means = torch.var_mean(parts, over, correction=0, keepdim=True)
    y = ((parts - means) * (variances + eps).rsqrt()).flatten(0, 1)
    if weight is not None and bias is not None:
        y = y * _channels(weight, x) + _channels(bias, x)
    unbiased = variances * (count / max(count - 1, 1))
    return y.to(x.dtype), torch.stack([means, unbiased]).detach().view(2, groups, x.shape[1])


class Segment(NamedTuple):
    """This rank's rows of one batch-norm group."""

    group: int
    rows: slice


def segments(n: int, groups: int) -> list[Segment]:
    """This rank's n rows, split by the batch-norm groups of all ranks' rows, in order."""
    rank = dist.get_rank() if processes() > 1 else 0
    first, size = rank * n, n * processes() // groups
    edges = sorted({first, first + n, *range(-(-first // size) * size, first + n, size)})
    return [Segment(a // size, slice(a - first, b - first)) for a, b in pairwise(edges)]


class _Spanning(Function):
    """Batch-norm groups that span ranks. Sums are in float32, or in float64 for float64."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, groups):  # type: ignore[no-untyped-def]
        parts, over = segments(len(x), groups), [0, *range(2, x.ndim)]
        dtype = torch.promote_types(x.dtype, torch.float32)
        table = torch.zeros(groups, x.shape[1] + 1, dtype=dtype, device=x.device)  # last column: counts
        for group, rows in parts:
            table[group, :-1] = x[rows].sum(over, dtype=dtype)
            table[group, -1] = x[rows].numel() // x.shape[1]
        table, count = summed(table).split([x.shape[1], 1], 1)
        means = table / count
        table = torch.zeros_like(means)
        for group, rows in parts:
            table[group] = (x[rows] - _channels(means[group], x)).square_().sum(over)
        variances = summed(table) / count
        y = torch.empty_like(x)
        for group, rows in parts:
            y[rows] = F.batch_norm(x[rows], means[group], variances[group], weight, bias, False, 0.0, eps)
        statistics = torch.stack([means, variances * (count / (count - 1).clamp(min=1))])
        ctx.save_for_backward(x, weight, means, (variances + eps).rsqrt(), count)
        ctx.parts, ctx.over = parts, over
        ctx.mark_non_differentiable(statistics)
        ctx.set_materialize_grads(False)
        return y, statistics

    @staticmethod
    def backward(ctx, gradient, _):  # type: ignore[no-untyped-def]
        x, weight, means, inverse, count = ctx.saved_tensors
        table = means.new_zeros(2, *means.shape)  # the sums of g and of g (x - mean) / std
        for group, rows in ctx.parts:
            g = gradient[rows]
            table[0, group] = g.sum(ctx.over, dtype=means.dtype)
            scaled = (x[rows] - _channels(means[group], x)).mul_(g)
            table[1, group] = scaled.sum(ctx.over) * inverse[group]
        # Parameters' gradients are of this rank alone: DDP averages them.
        to_bias, to_weight = (None, None) if weight is None else table.sum(1).to(weight.dtype)
        if not ctx.needs_input_grad[0]:
            return None, to_weight, to_bias, None, None
        table = summed(table) / count
        to_x = torch.empty_like(x)
        for group, rows in ctx.parts:
            factor = inverse[group] if weight is None else inverse[group] * weight
            slope = -factor * table[1, group] * inverse[group]
            offset = -factor * table[0, group] - slope * means[group]
            to_x[rows] = torch.addcmul(
                torch.addcmul(_channels(offset, x), x[rows], _channels(slope, x)),
                gradient[rows],
                _channels(factor, x),
            )
        return to_x, to_weight, to_bias, None, None


def _channels(values: Tensor, x: Tensor) -> Tensor:
    """(C,) reshaped to broadcast over x (n, C, ...)."""
    return values.view(-1, *[1] * (x.ndim - 2))
