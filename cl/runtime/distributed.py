"""What a run on several processes needs beyond one; a single process passes through untouched.

A batch of N images is spread over W ranks in order: rank r has the rows r N / W to (r + 1) N / W - 1. Every rank's loss is
the mean over its own queries, and gradients are averaged over ranks, so that they are those of one process.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function


def ranks() -> int:
    """How many processes share the run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if ranks() > 1 else 0


def global_rows(n: int) -> Tensor:
    """(n,): where this rank's n images stand in the batch of all ranks."""
    return rank() * n + torch.arange(n)


def local_part(x: Tensor) -> Tensor:
    """(N, ...) of all ranks to the (N / W, ...) of this one."""
    return x.chunk(ranks())[rank()]


def gather(x: Tensor) -> Tensor:
    """(n, ...) of each rank to (W n, ...) of all, in the order of ranks.

    The gradient of a rank's part is the sum of those of all ranks' losses.
    """
    return x if ranks() == 1 else _Gather.apply(x)


def mean_over_ranks(x: Tensor) -> Tensor:
    """Mean of a tensor over all ranks, with gradient to each rank's own part."""
    return x if ranks() == 1 else _Sum.apply(x) / ranks()


def any_rank(*flags: bool) -> list[bool]:
    """Whether each flag is set on any rank, which all wait to know; a matter of hosts alone, no device waits."""
    if ranks() == 1:
        return list(flags)
    shared = torch.tensor([*map(int, flags), 0])
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return [bool(flag) for flag in shared[:-1]]


class _Gather(Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        result = x.new_empty((ranks() * len(x), *x.shape[1:]))
        dist.all_gather_into_tensor(result, x.contiguous())
        return result

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return local_part(summed(gradient))


class _Sum(Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return summed(x)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return summed(gradient)


def summed(x: Tensor) -> Tensor:
    """Sum of a tensor over all ranks, without gradient."""
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x)
    return x
