"""How processes share a run; in a single process, tensors pass through unchanged.

A batch of N images is split over W ranks in order: rank r has rows r N / W to (r + 1) N / W - 1. Each rank's
loss is the mean over its queries. Gradients are averaged over ranks, so they equal one process's gradients.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.distributed.nn.functional import all_reduce

from cl.runtime.machine import to_device

_single = ContextVar("single", default=False)


@contextmanager
def single_process(single: bool = True) -> Iterator[None]:
    """Within it, if `single`, this process counts as the only one: nothing is gathered."""
    token = _single.set(single)
    try:
        yield
    finally:
        _single.reset(token)


def ranks() -> int:
    """The number of processes that share the run."""
    return 1 if _single.get() else processes()


def processes() -> int:
    """The number of processes, whether or not this is within `single_process`; torch.compile can trace it."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gradient_group() -> dist.ProcessGroup:
    """All ranks, with a communicator of its own: other exchanges do not queue behind gradients.

    The first call is collective; it costs a communicator's memory on each GPU.
    """
    return _another_group(dist.group.WORLD)


@lru_cache(maxsize=1)
def _another_group(world: dist.ProcessGroup) -> dist.ProcessGroup:
    return dist.new_group()


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if ranks() > 1 else 0


def global_rows(n: int) -> Tensor:
    """(n,): the rows of this rank's n images in the batch of all ranks."""
    return rank() * n + torch.arange(n)


def local_part(x: Tensor) -> Tensor:
    """This rank's (N / W, ...) of a tensor (N, ...) of all ranks."""
    return x.chunk(ranks())[rank()]


def gather(x: Tensor) -> Tensor:
    """Concatenate the (n, ...) of each rank to (W n, ...), in the order of ranks.

    Backward, a rank's part receives the sum of its gradients from the losses of all ranks.
    """
    return x if ranks() == 1 else _Gather.apply(x)


def gather_together(tensors: Sequence[Tensor]) -> list[Tensor]:
    """`gather` of each of several tensors of one shape, in one collective."""
    if ranks() == 1:
        return list(tensors)
    of_ranks = gather(torch.stack(list(tensors))[None])  # (W, T, n, ...)
    return [part.flatten(0, 1) for part in of_ranks.unbind(1)]


def mean_over_ranks(x: Tensor) -> Tensor:
    """Mean of a tensor over all ranks; each rank's tensor receives its gradient."""
    return x if ranks() == 1 else all_reduce(x) / ranks()


def permute(x: Tensor, order: Tensor) -> Tensor:
    """Reorder the rows of all ranks, and return this rank's part (n, ...); each row is sent to one rank only.

    Row i of the result is row `order[i]`, (W n,) on the CPU, of all ranks' rows x, (n, ...) on every rank.
    """
    if ranks() == 1:
        return x[to_device(order, x.device)]
    n, parts = len(x), order.view(ranks(), -1)
    wanted = [part[part // n == rank()] - rank() * n for part in parts]  # my rows that each rank needs
    origins = parts[rank()] // n
    received = x.new_empty(x.shape)
    counts = torch.bincount(origins, minlength=ranks()).tolist(), [len(rows) for rows in wanted]
    sent = x[to_device(torch.cat(wanted), x.device)].contiguous()
    dist.all_to_all_single(received, sent, *counts)
    arrival = origins.argsort(stable=True)  # the row of the result that each received row belongs to
    return received[to_device(arrival.argsort(), x.device)]


def max_over_ranks(*values: float) -> list[float]:
    """The largest of each value over all ranks, which wait for each other, but not for their GPUs."""
    shared = torch.tensor([*values, 0.0], dtype=torch.float64)
    if ranks() > 1:
        dist.all_reduce(shared, dist.ReduceOp.MAX)
    return shared[:-1].tolist()


class _Gather(Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return gathered(x)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        part = gradient.new_empty((len(gradient) // ranks(), *gradient.shape[1:]))
        dist.reduce_scatter_tensor(part, gradient.contiguous())
        return part


def gathered(x: Tensor) -> Tensor:
    """Concatenate the (n, ...) of each rank to (W n, ...), without gradient."""
    result = x.new_empty((ranks() * len(x), *x.shape[1:]))
    dist.all_gather_into_tensor(result, x.contiguous())
    return result


def summed(x: Tensor) -> Tensor:
    """Sum of a tensor over all ranks, without gradient."""
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x)
    return x
