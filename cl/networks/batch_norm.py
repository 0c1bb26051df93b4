"""Batch norm over a given number of images, independent of how many a device holds."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cl.networks import _reference_batch_norm, _sync_batch_norm
from cl.runtime.distributed import mean_over_ranks, processes, ranks

_recomputing = False


class GroupBatchNorm(nn.Module):
    """`nn.BatchNorm` over each batch-norm group of all ranks' batch; takes over the state of `norm`.

    A rank may hold several batch-norm groups or part of one. `update_running_stats` updates the running
    statistics once per pass, with the mean over the batch-norm groups. In eval mode it behaves like `norm`.
    If `norm` is one of timm's, its activation is kept.

    groups: the number of batch-norm groups, which are equal parts of the batch.
    microbatches: the number of calls that make up a pass; each holds whole batch-norm groups.
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
        ending = [getattr(norm, name) for name in ("drop", "act") if hasattr(norm, name)]
        self.ending = nn.Sequential(*ending)
        self.pending: list[Tensor] = []  # (2, G, C) per call: means and unbiased variances

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, C, ...), this rank's rows of a microbatch, image-major."""
        if not self.training:
            y = F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
            return self.ending(y)
        spans = self.spans_ranks()
        rows, groups = (
            (len(x) * processes(), self.groups) if spans else (len(x), self.groups // self._parts())
        )
        assert groups == 1 or rows % groups == 0, f"{rows} rows in {groups} groups"
        arguments = x, self.weight, self.bias, self.eps, groups
        if spans and _sync_batch_norm.usable(x):
            y, self.latest = _sync_batch_norm.normalise(*arguments)
        else:
            y, self.latest = _reference_batch_norm.normalise(*arguments, spans=spans)
        if not torch.compiler.is_compiling():
            self.keep()
        return self.ending(y)

    def keep(self) -> None:
        """Keep the statistics of the last call for `update_running_stats`, unless it was a recomputation.

        A compiled network calls it after each pass: inside the graph, the growing list would cause another
        compilation each time.
        """
        if not _recomputing:
            self.pending.append(self.latest)

    def spans_ranks(self) -> bool:
        """Whether a batch-norm group has rows on several ranks."""
        spans = self.groups % self._parts() > 0
        assert not spans or self.microbatches == 1, "a batch-norm group does not fit in a microbatch"
        return spans

    def _parts(self) -> int:
        """The calls, on all ranks, that make up a pass."""
        return processes() * self.microbatches


BATCH_NORMS = (nn.modules.batchnorm._BatchNorm, GroupBatchNorm)
NORMS = (*BATCH_NORMS, nn.LayerNorm, nn.GroupNorm)


def is_untrained(network: nn.Module) -> bool:
    """Whether every bias of its normalisation layers is 0, as before the first step."""
    biases = [layer.bias for layer in network.modules() if isinstance(layer, NORMS)]
    known = [bias for bias in biases if bias is not None]
    return bool(known) and not any(bias.any() for bias in known)


def set_groups(module: nn.Module, groups: int, microbatches: int = 1) -> None:
    """Give every batch norm in `module` this number of batch-norm groups; with 1 in one process, keep it.

    A backbone that encodes in microbatches (`passes.encode_in_microbatches`) passes their number on. A batch
    norm that is kept counts its batches in `update_running_stats`, as those with groups do.
    """
    if groups == microbatches == ranks() == 1:
        kept: list[Any] = [
            norm for norm in module.modules() if type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d)
        ]
        for norm in kept:
            norm.passes, norm.forward = 0, partial(_forward_of_kept, norm)
        return
    for name, child in module.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            setattr(module, name, GroupBatchNorm(child, groups, microbatches))
        else:
            set_groups(child, groups, getattr(child, "microbatches", microbatches))


def _forward_of_kept(norm: Any, x: Tensor) -> Tensor:
    """`norm(x)`, but with the batch counted in `passes`: PyTorch would start a GPU's kernel to add 1."""
    if not norm.training or torch.compiler.is_compiling():
        return type(norm).forward(norm, x)
    norm.passes += 1
    statistics = norm.running_mean, norm.running_var
    return F.batch_norm(x, *statistics, norm.weight, norm.bias, True, norm.momentum, norm.eps)


@torch.no_grad()
def update_running_stats(module: nn.Module) -> None:
    """Update the running statistics with all passes since the last call, in one exchange between ranks.

    All batch norms of the module must have the same number of batch-norm groups and microbatches.
    """
    kept: list[Any] = [norm for norm in module.modules() if getattr(norm, "passes", 0)]
    if kept:
        torch._foreach_add_([norm.num_batches_tracked for norm in kept], [norm.passes for norm in kept])
    for norm in kept:
        norm.passes = 0
    passes = _take_passes(module)
    if not passes:
        return
    calls = [statistics for each in passes for statistics in each.values()]
    on_cpu = calls[0][0].device.type == "cpu"
    averaged = mean_over_ranks(_averaged(calls) if on_cpu else _averaged_at_once(calls))
    values = iter(averaged.split([call[0].shape[-1] for call in calls], 1))  # (2, C) each
    for norms in passes:
        torch._foreach_lerp_(
            [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var)],
            [row for _ in norms for row in next(values)],
            [momentum for norm in norms for momentum in (norm.momentum, norm.momentum)],
        )
        torch._foreach_add_([norm.num_batches_tracked for norm in norms], 1)


def _take_passes(module: nn.Module) -> list[dict[GroupBatchNorm, list[Tensor]]]:
    """For each pass since the last call, its batch norms, with a (2, G, C) for each call in it."""
    passes, norms = [], [norm for norm in module.modules() if isinstance(norm, GroupBatchNorm)]
    while norms := [norm for norm in norms if norm.pending]:
        passes.append({norm: norm.pending[: norm.microbatches] for norm in norms})
        for norm in norms:
            del norm.pending[: norm.microbatches]
    return passes


def _averaged(calls: list[list[Tensor]]) -> Tensor:
    """(2, sum of C): the mean of each entry, a list of (2, G, C), over microbatches and batch-norm groups."""
    return torch.cat([torch.stack([x.mean(1) for x in entry]).mean(0) for entry in calls], 1)


def _averaged_at_once(calls: list[list[Tensor]]) -> Tensor:
    """The same in few operations; the rounding of an entry then depends on the other entries."""
    together = [entry[0] if len(entry) == 1 else torch.cat(entry, 1) for entry in calls]  # (2, G, C) each
    return torch.cat(together, -1).mean(1)


def recomputing() -> tuple[AbstractContextManager, AbstractContextManager]:
    """Contexts for a forward pass and its recomputation, which adds no statistics (torch's `context_fn`)."""
    return nullcontext(), _repeated()


@contextmanager
def _repeated() -> Iterator[None]:
    global _recomputing
    _recomputing = True
    try:
        yield
    finally:
        _recomputing = False


def has_batch_norm(network: nn.Module) -> bool:
    """Whether any layer uses the statistics of a batch."""
    return any(isinstance(layer, BATCH_NORMS) for layer in network.modules())
