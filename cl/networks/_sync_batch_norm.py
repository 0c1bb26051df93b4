"""Batch norm over ranks by the CUDA kernels of `nn.SyncBatchNorm`, for any number of batch-norm groups.

They read and write the rows as often as batch norm on one GPU, and ranks communicate once in each direction.
"""

from itertools import chain

import torch
from torch import Tensor
from torch.autograd import Function

from cl.networks._reference_batch_norm import Segment, segments
from cl.runtime.distributed import gathered, summed

Pair = tuple[Tensor, Tensor]  # mean and 1 / standard deviation of a batch-norm group, (C,) each


def usable(x: Tensor) -> bool:
    """Whether the kernels exist for `x`; the compiler does not know them, and fuses the reference instead."""
    return x.is_cuda and not torch.compiler.is_compiling()


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, groups: int
) -> tuple[Tensor, Tensor]:
    """Compute what `normalise` of `_reference_batch_norm.py` does for batch-norm groups that span ranks."""
    return _SyncBatchNorm.apply(x.contiguous(memory_format=_layout(x)), weight, bias, eps, groups)


def _layout(x: Tensor) -> torch.memory_format:
    """The layout in which the kernels read x; all tensors of its shape must have it."""
    channels_last = x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if channels_last else torch.contiguous_format


class _SyncBatchNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps, groups):  # type: ignore[no-untyped-def]
        parts = segments(len(x), groups)
        pairs, statistics, counts = _shared(x, parts, eps, groups)
        y = [
            torch.batch_norm_elemt(x[rows], weight, bias, *pair, eps)
            for (_, rows), pair in zip(parts, pairs, strict=True)
        ]
        ctx.save_for_backward(x, weight, counts, *chain(*pairs))
        ctx.parts = parts
        ctx.mark_non_differentiable(statistics)
        ctx.set_materialize_grads(False)
        return _joined(y), statistics

    @staticmethod
    def backward(ctx, gradient, _):  # type: ignore[no-untyped-def]
        x, weight, counts, *pairs = ctx.saved_tensors
        g, affine = gradient.contiguous(memory_format=_layout(x)), weight is not None
        parts = [
            (g[rows], x[rows], mean, inverse, weight)
            for (_, rows), mean, inverse in zip(ctx.parts, pairs[::2], pairs[1::2], strict=True)
        ]
        reduced = [torch.batch_norm_backward_reduce(*part, True, affine, affine) for part in parts]
        # The parameters' gradients are of this rank alone: DDP averages them.
        # Without parameters, the kernels for channels-last rows return empty tensors.
        to_weight, to_bias = (_total([each[i] for each in reduced]) if affine else None for i in (2, 3))
        if not ctx.needs_input_grad[0]:  # behind a frozen layer
            return None, to_weight, to_bias, None, None
        sums = [torch.stack(both) for *both, _, _ in reduced]  # of g and of g (x - mean), (2, C)
        table = summed(_by_group(sums, ctx.parts, len(counts)))
        to_x = [
            torch.batch_norm_backward_elemt(*part, *table[group], counts[group])
            for part, (group, _) in zip(parts, ctx.parts, strict=True)
        ]
        return _joined(to_x), to_weight, to_bias, None, None


def _shared(x: Tensor, parts: list[Segment], eps: float, groups: int) -> tuple[list[Pair], Tensor, Tensor]:
    """The pair of each part; means and unbiased variances (2, G, C); numbers of elements (G, W) by rank."""
    everyone = gathered(_by_group([_row(x[rows], eps) for _, rows in parts], parts, groups)[None])
    statistics = everyone.new_zeros(2, groups, x.shape[1])
    size, n = len(x) * len(everyone) // groups, len(x)
    pairs = []
    for group in range(groups):
        holders = slice(group * size // n, -(-(group + 1) * size // n))  # the ranks with rows of the group
        mean, inverse, count = everyone[holders, group].split([x.shape[1], x.shape[1], 1], 1)
        running_mean, running_var = statistics[:, group]  # with momentum 1, they become this group's
        pair = torch.batch_norm_gather_stats_with_counts(
            x, mean, inverse, running_mean, running_var, 1.0, eps, count[:, 0]
        )
        pairs.append(pair)
    counts = everyone[..., -1].T.to(torch.int32, memory_format=torch.contiguous_format)
    return [pairs[part.group] for part in parts], statistics, counts


def _row(x: Tensor, eps: float) -> Tensor:
    """(2 C + 1,): mean, 1 / standard deviation and the number of elements of each channel of x."""
    mean, inverse = torch.batch_norm_stats(x, eps)
    return torch.cat([mean, inverse, mean.new_full((1,), x.numel() // x.shape[1])])


def _by_group(values: list[Tensor], parts: list[Segment], groups: int) -> Tensor:
    """(G, ...): the value of each part at its batch-norm group's row; 0 for groups without rows here."""
    stacked = torch.stack(values) if len(values) > 1 else values[0][None]
    if len(parts) == groups:
        return stacked
    table = stacked.new_zeros(groups, *stacked.shape[1:])
    table[parts[0].group : parts[-1].group + 1] = stacked
    return table


def _joined(rows: list[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _total(values: list[Tensor]) -> Tensor:
    """The sum of a parameter's gradients over the parts."""
    return values[0] if len(values) == 1 else torch.stack(values).sum(0)
