"""Negatives that are never gathered: each rank's rows visit the other ranks in turn."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from cl.runtime.distributed import gather, gather_together, rank, ranks

GATHERED = 2**27  # the most numbers that are gathered from all ranks; 512 MiB in float32


@dataclass(frozen=True)
class Sharded:
    """W n rows of width D in the order of ranks; each of the W ranks holds n of them.

    local: (n, D), this rank's rows.
    """

    local: Tensor

    def __len__(self) -> int:
        return ranks() * len(self.local)


def of_all_ranks(x: Tensor) -> Tensor | Sharded:
    """The rows (n, D) of each rank as negatives for all ranks: (W n, D).

    They are gathered unless that takes more than GATHERED numbers. A ring moves and computes as much, but in
    W - 1 messages instead of one collective. The gradient of a rank's rows is the same either way.
    """
    if ranks() == 1 or ranks() * x.numel() <= GATHERED:
        return gather(x)
    return Sharded(x)


def of_all_ranks_together(tensors: list[Tensor]) -> list[Tensor | Sharded]:
    """`of_all_ranks` of each of several tensors of one shape, in one collective if they are gathered."""
    if ranks() == 1 or ranks() * tensors[0].numel() <= GATHERED:
        return [*gather_together(tensors)]
    return [Sharded(x) for x in tensors]


def local_rows(rows: Tensor | Sharded) -> Tensor:
    """The rows that this rank holds."""
    return rows.local if isinstance(rows, Sharded) else rows


def rounds(x: Tensor, sharded: bool) -> Iterator[tuple[int, Tensor]]:
    """The rows (n, D) of each rank, starting with this rank, and the number of their first row.

    While one rank's rows are used, the next rank's are being received.
    """
    count = ranks() if sharded else 1
    x = x.contiguous()
    for step in range(count):
        exchange = _Exchange(x) if step + 1 < count else None
        yield (rank() - step) % count * len(x), x
        if exchange is not None:
            x = exchange.wait()


def pass_on(gradient: Tensor, sharded: bool) -> Tensor:
    """Exchange gradients after each round, so that they follow their rows; the last are this rank's."""
    return _Exchange(gradient).wait() if sharded and ranks() > 1 else gradient


class _Exchange:
    """Sends a tensor to the next rank, and receives a tensor of the same shape from the previous rank."""

    def __init__(self, x: Tensor) -> None:
        self.received = torch.empty_like(x)
        self.requests = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, x, (rank() + 1) % ranks()),
                dist.P2POp(dist.irecv, self.received, (rank() - 1) % ranks()),
            ]
        )

    def wait(self) -> Tensor:
        for request in self.requests:
            request.wait()
        return self.received
