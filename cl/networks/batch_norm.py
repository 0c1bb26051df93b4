"""Batch norm whose statistics come from a given number of images, not from those a device happens to hold."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from cl.runtime.distributed import mean_over_ranks, rank, ranks, summed

_recomputing = False


class GroupBatchNorm(nn.Module):
    """`nn.BatchNorm` over each of `groups` equal parts of all ranks' batch; takes over the state of `norm`.

    A rank may hold several groups or part of one. `update_running_stats` updates the running statistics once
    per pass, with the mean over the groups. In eval mode it behaves like `norm`.

    Args:
        microbatches: the number of calls that make up a pass; each holds whole groups.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm, groups: int, microbatches: int = 1) -> None:
        super().__init__()
        assert norm.momentum is not None
        self.groups, self.microbatches = groups, microbatches
        self.eps, self.momentum = norm.eps, norm.momentum
        self.weight, self.bias = norm.weight, norm.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(norm, name))
        self.pending: list[Tensor] = []  # (2, C) per call: the groups' means and variances, averaged

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, C, ...), this rank's rows of a microbatch, image-major."""
        if not self.training:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        parts = ranks() * self.microbatches
        y, means, variances = (
            self._whole(x, self.groups // parts) if self.groups % parts == 0 else self._spanning(x)
        )
        self.latest = torch.stack([means.mean(0), variances.mean(0)]).detach()
        if not torch.compiler.is_compiling():
            self.keep()
        return y

    def keep(self) -> None:
        """Keep the statistics of the last call for `update_running_stats`, unless it was a recomputation.

        A compiled network calls it after each pass; it would be compiled anew for every length of a list.
        """
        if not _recomputing:
            self.pending.append(self.latest)

    def _whole(self, x: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised rows, means (G, C) and unbiased variances (G, C); every group is within this rank."""
        assert len(x) % groups == 0, f"{len(x)} rows in {groups} groups"
        means = self.running_mean.new_zeros(groups, x.shape[1])
        variances = torch.ones_like(means)
        parts = [
            F.batch_norm(part, mean, variance, self.weight, self.bias, True, 1.0, self.eps)
            for part, mean, variance in zip(x.chunk(groups), means, variances, strict=True)
        ]
        return parts[0] if groups == 1 else torch.cat(parts), means, variances

    def _spanning(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same where groups span ranks; a single group may have differently sized parts on them."""
        assert self.microbatches == 1, "a group does not fit in a microbatch"
        assert self.groups == 1 or len(x) * ranks() % self.groups == 0, (
            f"{len(x) * ranks()} rows in {self.groups} groups"
        )
        return _Spanning.apply(x, self.weight, self.bias, self.eps, self.groups)


def set_groups(module: nn.Module, groups: int, microbatches: int = 1) -> None:
    """Give every batch norm in `module` this number of groups; with one group in one process, do nothing."""
    if groups == microbatches == ranks() == 1:
        return
    for name, child in module.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            setattr(module, name, GroupBatchNorm(child, groups, microbatches))
        else:
            set_groups(child, groups, microbatches)


@torch.no_grad()
def update_running_stats(module: nn.Module) -> None:
    """Update the running statistics with all passes since the last call, in one exchange between ranks."""
    norms = [norm for norm in module.modules() if isinstance(norm, GroupBatchNorm) and norm.pending]
    if not norms:
        return
    # Per norm: (passes, 2, C).
    passes = [torch.stack(norm.pending).unflatten(0, (-1, norm.microbatches)).mean(1) for norm in norms]
    flat = mean_over_ranks(torch.cat([x.flatten() for x in passes]))
    for norm, local, averaged in zip(norms, passes, flat.split([x.numel() for x in passes]), strict=True):
        for mean, variance in averaged.view(local.shape):
            norm.running_mean.lerp_(mean, norm.momentum)
            norm.running_var.lerp_(variance, norm.momentum)
        norm.num_batches_tracked += len(local)
        norm.pending.clear()


def recomputing() -> tuple[AbstractContextManager, AbstractContextManager]:
    """Contexts of a forward pass and its recomputation, which adds no statistics (torch's `context_fn`)."""
    return nullcontext(), _repeated()


@contextmanager
def _repeated() -> Iterator[None]:
    global _recomputing
    _recomputing = True
    try:
        yield
    finally:
        _recomputing = False


class _Segment(NamedTuple):
    """This rank's rows of one group."""

    group: int
    rows: slice


def _segments(n: int, groups: int) -> list[_Segment]:
    size, first = n * ranks() // groups, rank() * n
    edges = sorted({first, first + n, *range(-(-first // size) * size, first + n, size)})
    return [_Segment(a // size, slice(a - first, b - first)) for a, b in pairwise(edges)]


class _Spanning(Function):
    """Batch norm over groups that span ranks; also returns means (G, C) and unbiased variances (G, C).

    Sums are in float32, or in float64 for float64.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, eps, groups):  # type: ignore[no-untyped-def]
        segments, over = _segments(len(x), groups), [0, *range(2, x.ndim)]
        dtype = torch.promote_types(x.dtype, torch.float32)
        table = torch.zeros(groups, x.shape[1] + 1, dtype=dtype, device=x.device)  # the last column counts
        for group, rows in segments:
            table[group, :-1] = x[rows].sum(over, dtype=dtype)
            table[group, -1] = x[rows].numel() // x.shape[1]
        table, count = summed(table).split([x.shape[1], 1], 1)
        means = table / count
        table = torch.zeros_like(means)
        for group, rows in segments:
            table[group] = (x[rows] - _channels(means[group], x)).square_().sum(over)
        variances = summed(table) / count
        y = torch.empty_like(x)
        for group, rows in segments:
            y[rows] = F.batch_norm(x[rows], means[group], variances[group], weight, bias, False, 0.0, eps)
        unbiased = variances * (count / (count - 1).clamp(min=1))
        ctx.save_for_backward(x, weight, means, (variances + eps).rsqrt(), count)
        ctx.segments, ctx.over = segments, over
        ctx.mark_non_differentiable(means, unbiased)
        return y, means, unbiased

    @staticmethod
    def backward(ctx, gradient, *_):  # type: ignore[no-untyped-def]
        x, weight, means, inverse, count = ctx.saved_tensors
        table = means.new_zeros(2, *means.shape)  # sums over each group of g and of g (x - mean) / std
        for group, rows in ctx.segments:
            g = gradient[rows]
            table[0, group] = g.sum(ctx.over, dtype=means.dtype)
            scaled = (x[rows] - _channels(means[group], x)).mul_(g)
            table[1, group] = scaled.sum(ctx.over) * inverse[group]
        to_bias, to_weight = table.sum(1)  # this rank's only: DDP averages the gradients of parameters
        table = summed(table) / count
        to_x = torch.empty_like(x)
        for group, rows in ctx.segments:
            factor = inverse[group] if weight is None else inverse[group] * weight
            slope = -factor * table[1, group] * inverse[group]
            offset = -factor * table[0, group] - slope * means[group]
            to_x[rows] = torch.addcmul(
                torch.addcmul(_channels(offset, x), x[rows], _channels(slope, x)),
                gradient[rows],
                _channels(factor, x),
            )
        if weight is None:
            return to_x, None, None, None, None
        return to_x, to_weight.to(weight.dtype), to_bias.to(weight.dtype), None, None


def _channels(values: Tensor, x: Tensor) -> Tensor:
    """(C,) reshaped to broadcast over x (n, C, ...)."""
    return values.view(-1, *[1] * (x.ndim - 2))
