"""A memory bank: an embedding of every image of the data set."""

import math
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cl.networks.queue import NO_GROUP
from cl.runtime.cores import share_of_cores
from cl.runtime.distributed import gather, local_part, ranks
from cl.runtime.machine import empty_for, to_device


class Bank(nn.Module):
    """A moving average of each image's embeddings, indexed by its position in the data (InstDisc, sec. 3.1).

    Rows start as random unit rows. InstDisc's and CMC's code draws them uniformly in +-sqrt(3 / D), so that
    their length is 1 only on average; VISSL and Local Aggregation then normalise them.

    rows: (images, D), unit rows.
    groups: (images,) int64, as in `Batch.row_groups`; known after an image's first update.
    log_normalizer: scalar, log of the mean of exp(logit) in the first batch, and constant afterwards: an
        estimate of log(Z / images), with InstDisc's Z = sum_j exp(z . v_j / temperature). NaN before.
    """

    def __init__(self, images: int, width: int, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.rows = nn.Buffer(F.normalize(torch.randn(images, width), dim=1))
        self.groups = nn.Buffer(torch.full((images,), NO_GROUP))
        self.log_normalizer = nn.Buffer(torch.tensor(math.nan))
        self._normalized = False  # caches a look at the buffer, which would wait for the device
        self._ahead: Draw | None = None  # for the next step

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which draw for themselves."""
        return {**self.__dict__, "_ahead": None}

    @torch.no_grad()
    def update(self, positions: Tensor, new: Tensor, groups: Tensor | None) -> None:
        """Move the rows v of the images in the batch of all ranks to l2(momentum v + (1 - momentum) z).

        An image that occurs several times in the batch is updated once, with its first embedding z. Of this
        rank's images: positions (N,), embeddings (N, D) and groups (N,), if the data has any.
        """
        positions, new = gather(positions), gather(new).to(self.rows.dtype)
        first = (positions[:, None] == positions).byte().argmax(1)  # the same values for all copies
        mixed = self.momentum * self.rows[positions] + (1 - self.momentum) * new[first]
        self.rows[positions] = F.normalize(mixed, dim=1)
        if groups is not None:
            self.groups[positions] = gather(groups)[first]

    def sample(
        self,
        positions: Tensor,
        count: int,
        generator: torch.Generator,
        following: torch.Generator | None = None,
        *,
        own: bool,
    ) -> Tensor:
        """(N, count) int64: rows sampled with replacement for each image, the same for any number of ranks.

        The `generator` gives each image of the batch a seed; this rank's are at `positions` (N,). Until the
        next call, threads draw for its generator, `following`. If `own`, an image's own row may be drawn.
        """
        shape, below = (len(positions), count), len(self.rows) if own else len(self.rows) - 1
        draw, self._ahead = self._ahead, None
        if draw is None or draw.what != (generator.initial_seed(), shape, below):
            draw = start_drawing(generator, shape, below, positions.device)
        if following is not None:
            self._ahead = start_drawing(following, shape, below, positions.device)
        for part in draw.parts:
            part.result()
        samples = to_device(draw.samples, positions.device).long()
        return samples if own else samples.add_(samples >= positions[:, None])

    def has_normalizer(self) -> bool:
        """Whether `log_normalizer` has been estimated."""
        self._normalized = self._normalized or not bool(self.log_normalizer.isnan())
        return self._normalized

    @torch.no_grad()
    def estimate_normalizer(self, log_sums: Tensor, counts: Tensor) -> None:
        """Set `log_normalizer` from the first batch.

        log_sums: (N,), log of the sum of exp(logit) over the `counts` (N,) candidates of this rank's queries.
        """
        self.log_normalizer.copy_(gather(log_sums).logsumexp(0) - gather(counts).sum().log())
        self._normalized = True


class Draw(NamedTuple):
    """Samples (N, count) int32 that threads draw; `what` they are: the seed, the shape and the bound."""

    what: tuple[int, tuple[int, int], int]
    samples: Tensor
    parts: list[Future[None]]


def start_drawing(
    generator: torch.Generator, shape: tuple[int, int], below: int, device: torch.device
) -> Draw:
    """Start threads that draw numbers below `below`, into memory that `device` copies directly."""
    what = generator.initial_seed(), shape, below
    seeds = local_part(torch.randint(2**32, (shape[0] * ranks(),), generator=generator))  # one per image
    samples = empty_for(device, shape, torch.int32)  # half of int64's bytes
    threads = share_of_cores()
    pool = ThreadPoolExecutor(threads)  # PyTorch draws in one thread
    chunks = zip(samples.chunk(threads), seeds.chunk(threads), strict=True)
    parts = [pool.submit(_fill, *chunk, below) for chunk in chunks]
    pool.shutdown(wait=False)  # the threads end with their work
    return Draw(what, samples, parts)


def _fill(samples: Tensor, seeds: Tensor, below: int) -> None:
    """Draw each row of `samples` with its seed."""
    for row, seed in zip(samples, seeds.tolist(), strict=True):
        torch.randint(below, row.shape, generator=torch.Generator().manual_seed(seed), out=row)
