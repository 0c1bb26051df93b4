"""Batch norm over groups of images by PyTorch's CUDA kernels, called so that they write into slices.

Groups that span ranks use the kernels of `nn.SyncBatchNorm`, which exist for CUDA only. They read and write
the rows as often as batch norm over one group does, and ranks exchange once in each direction.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from cl.networks import _plain_batch_norm
from cl.networks._plain_batch_norm import Segment, segments
from cl.runtime import native
from cl.runtime.distributed import gathered, summed

Pair = tuple[Tensor, Tensor]  # mean and 1 / standard deviation of a group, (C,) each


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, groups: int, *, spans: bool
) -> tuple[Tensor, Tensor]:
    """Compute what `normalise` of `_plain_batch_norm.py` computes."""
    x = x.contiguous(memory_format=_layout(x))
    if spans:
        return _Spanning.apply(x, weight, bias, eps, groups, True)
    return _Within.apply(x, weight, bias, eps, groups)


def usable(x: Tensor) -> bool:
    """Whether the kernels have matched the plain form on the device and with the type of `x`.

    Not in compiled code: the compiler fuses the plain form, and has no rules for `SyncBatchNorm`'s kernels.
    """
    return not torch.compiler.is_compiling() and x.dtype in PATHS and PATHS[x.dtype].usable(x.device)


def _layout(x: Tensor) -> torch.memory_format:
    """The layout in which the kernels read x, and which all tensors of its shape must have."""
    channels_last = x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if channels_last else torch.contiguous_format


class _Within(Function):
    """Groups within this rank."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, groups):  # type: ignore[no-untyped-def]
        y = torch.empty_like(x)
        statistics = x.new_zeros(2, groups, x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32))
        saved = torch.empty_like(statistics)
        rows = x.chunk(groups), y.chunk(groups), statistics.unbind(1), saved.unbind(1)
        for part, out, running, pair in zip(*rows, strict=True):
            # With a momentum of 1, the running statistics become those of the group.
            torch.native_batch_norm(part, weight, bias, *running, True, 1.0, eps, out=(out, *pair))
        ctx.save_for_backward(x, weight, saved)
        ctx.eps = eps
        ctx.mark_non_differentiable(statistics)
        ctx.set_materialize_grads(False)
        return y, statistics

    @staticmethod
    def backward(ctx, gradient, _):  # type: ignore[no-untyped-def]
        x, weight, saved = ctx.saved_tensors
        g, affine = gradient.contiguous(memory_format=_layout(x)), weight is not None
        groups = saved.shape[1]
        found = [
            torch.ops.aten.native_batch_norm_backward(
                of_y, part, weight, None, None, *pair, True, ctx.eps, [True, affine, affine]
            )
            for of_y, part, pair in zip(g.chunk(groups), x.chunk(groups), saved.unbind(1), strict=True)
        ]
        to_x, to_weight, to_bias = zip(*found, strict=True)
        return torch.cat(to_x), _total(to_weight), _total(to_bias), None, None


class _Spanning(Function):
    """Groups that span ranks; without `exchange`, groups within this rank, to verify the kernels."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, groups, exchange):  # type: ignore[no-untyped-def]
        parts = segments(len(x), groups, spans=exchange)
        pairs, statistics, counts = _shared(x, parts, eps, groups, exchange)
        y = torch.empty_like(x)
        for (_, rows), pair in zip(parts, pairs, strict=True):
            torch.batch_norm_elemt(x[rows], weight, bias, *pair, eps, out=y[rows])
        ctx.save_for_backward(x, weight, counts, *chain(*pairs))
        ctx.parts, ctx.exchange = parts, exchange
        ctx.mark_non_differentiable(statistics)
        ctx.set_materialize_grads(False)
        return y, statistics

    @staticmethod
    def backward(ctx, gradient, _):  # type: ignore[no-untyped-def]
        x, weight, counts, *pairs = ctx.saved_tensors
        g, affine = gradient.contiguous(memory_format=_layout(x)), weight is not None
        parts = [
            (g[rows], x[rows], mean, inverse, weight)
            for (_, rows), mean, inverse in zip(ctx.parts, pairs[::2], pairs[1::2], strict=True)
        ]
        reduced = [torch.batch_norm_backward_reduce(*part, True, affine, affine) for part in parts]
        sums = [torch.stack(both) for *both, _, _ in reduced]  # of g and of g (x - mean), (2, C)
        table = _by_group(sums, ctx.parts, len(counts))
        if ctx.exchange:
            table = summed(table)
        to_x = [
            torch.batch_norm_backward_elemt(*part, *table[group], counts[group])
            for part, (group, _) in zip(parts, ctx.parts, strict=True)
        ]
        # The parameters' gradients are this rank's only: DDP averages them.
        to_weight, to_bias = (_total([each[i] for each in reduced]) for i in (2, 3))
        return to_x[0] if len(to_x) == 1 else torch.cat(to_x), to_weight, to_bias, None, None, None


def _shared(
    x: Tensor, parts: list[Segment], eps: float, groups: int, exchange: bool
) -> tuple[list[Pair], Tensor, Tensor]:
    """The pair of each part's group; means and unbiased variances (2, G, C); elements (G, W) on each rank."""
    everyone = _by_group([_row(x[rows], eps) for _, rows in parts], parts, groups)[None]
    if exchange:
        everyone = gathered(everyone)  # (W, G, 2 C + 1)
    statistics = everyone.new_zeros(2, groups, x.shape[1])
    size, n = len(x) * len(everyone) // groups, len(x)
    pairs = []
    for group in range(groups):
        holders = slice(group * size // n, -(-(group + 1) * size // n))  # the ranks that have rows of it
        pairs.append(_combined(everyone[holders, group], x, eps, statistics[:, group]))
    counts = everyone[..., -1].T.to(torch.int32, memory_format=torch.contiguous_format)
    return [pairs[part.group] for part in parts], statistics, counts


def _row(x: Tensor, eps: float) -> Tensor:
    """(2 C + 1,): mean, 1 / standard deviation and the number of elements of each channel of x."""
    mean, inverse = torch.batch_norm_stats(x, eps)
    return torch.cat([mean, inverse, mean.new_full((1,), x.numel() // x.shape[1])])


def _combined(rows: Tensor, x: Tensor, eps: float, statistics: Tensor) -> Pair:
    """The mean and 1 / standard deviation of all elements of several ranks, from a row (2 C + 1) of each.

    statistics: (2, C), overwritten by the mean and the unbiased variance; 0 before.
    """
    mean, inverse, count = rows.split([x.shape[1], x.shape[1], 1], 1)
    running_mean, running_var = statistics.unbind()  # with a momentum of 1, they become those of the group
    return torch.batch_norm_gather_stats_with_counts(
        x, mean, inverse, running_mean, running_var, 1.0, eps, count[:, 0]
    )


def _by_group(values: list[Tensor], parts: list[Segment], groups: int) -> Tensor:
    """(G, ...): the value of each part at its group; 0 for groups that this rank has no rows of."""
    stacked = torch.stack(values) if len(values) > 1 else values[0][None]
    if len(parts) == groups:
        return stacked
    table = stacked.new_zeros(groups, *stacked.shape[1:])
    table[parts[0].group : parts[-1].group + 1] = stacked
    return table


def _total(values: Sequence[Any]) -> Tensor | None:
    """The sum of the groups' gradients of a parameter; None without parameters."""
    return values[0] if values[0] is None or len(values) == 1 else torch.stack(list(values)).sum(0)


def _difference(dtype: torch.dtype, device: torch.device) -> float:
    """Of both kinds of kernels on two groups, and of statistics over two ranks, from the plain forms."""
    within, plain = (partial(form, spans=False) for form in (normalise, _plain_batch_norm.normalise))
    found: list[Tensor] = []
    expected: list[Tensor] = []
    for shape, layout in EXAMPLES:
        rng = torch.Generator().manual_seed(0)
        x, g = (torch.randn(shape, generator=rng).mul(2).add(1).to(device, dtype) for _ in range(2))
        x, g = x.contiguous(memory_format=layout), g.contiguous(memory_format=layout)
        affine = torch.rand(2, shape[1], generator=rng).to(device, torch.promote_types(dtype, torch.float32))
        found += (*_results(within, x, g, affine), *_results(_alone, x, g, affine), *_of_two_ranks(x))
        expected += (*_results(plain, x, g, affine) * 2, *_of_all(x.double()))
    return native.relative_difference(found, expected)


def _alone(*arguments: Any) -> Pair:
    return _Spanning.apply(*arguments, False)


def _results(form: Callable[..., Pair], x: Tensor, g: Tensor, affine: Tensor) -> tuple[Tensor, ...]:
    """The normalised rows of two groups, statistics, and gradients of the rows and of weight and bias."""
    x, affine = x.clone().requires_grad_(), affine.clone().requires_grad_()
    y, statistics = form(x, *affine, EPS, 2)
    return y.detach(), statistics, *torch.autograd.grad(y, (x, affine), g)


def _of_two_ranks(x: Tensor) -> tuple[Tensor, ...]:
    """Mean, 1 / standard deviation and statistics of all rows, from those of two parts."""
    rows = torch.stack([_row(part, EPS) for part in x.split([3, 5])])
    statistics = rows.new_zeros(2, x.shape[1])
    return *_combined(rows, x, EPS, statistics), statistics


def _of_all(x: Tensor) -> tuple[Tensor, ...]:
    """The same from all rows at once."""
    over = [0, *range(2, x.ndim)]
    mean, inverse = x.mean(over), (x.var(over, correction=0) + EPS).rsqrt()
    return mean, inverse, torch.stack([mean, x.var(over)])


EPS = 1e-5
EXAMPLES = [
    ((8, 16, 5, 5), torch.channels_last),
    ((8, 16, 5, 5), torch.contiguous_format),
    ((8, 16), torch.contiguous_format),
]
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2}  # of results in these types
PATHS = {
    dtype: native.declare(
        f"batch norm over groups in {str(dtype).removeprefix('torch.')}",
        partial(_difference, dtype),
        tolerance,
    )
    for dtype, tolerance in TOLERANCES.items()
}
