"""The order of samples: a function of seed and epoch, shuffled, yet read from disk in long stretches.

The samples of step t depend only on (seed, t, number of samples, batch size), so a run sees the same batches
after a resume and with any number of workers and processes. No sample appears twice in an epoch; the
incomplete last batch is dropped. A batch is divided among processes by chunk, so most chunks are read by one
or two processes instead of all.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cl.runtime.distributed import rank, ranks

CHUNK = 64  # neighbouring samples, read within one window
WINDOW = 256  # chunks whose samples are shuffled together
SCATTER = 0x9E3779B1  # 2**32 / golden ratio: sends neighbouring chunks to different processes
ORDER_STREAM = 2**63  # a key that separates the order's random numbers from the samples'


class Order:
    """One epoch: the chunks in random order, then the samples of every WINDOW chunks shuffled together.

    Takes 8 bytes per chunk (125 MB for a billion images), plus the windows in use.
    """

    def __init__(self, samples: int, seed: int, epoch: int) -> None:
        self.samples, self.seed, self.epoch = samples, seed, epoch
        self._chunks = self._generator(0).permutation(-(-samples // CHUNK))
        # The last chunk may be short, so later places in this epoch shift by the gap.
        self._gap = -samples % CHUNK
        self._short = int(np.flatnonzero(self._chunks == len(self._chunks) - 1)[0])

    def _generator(self, stream: int) -> np.random.Generator:
        philox = np.random.Philox(key=[self.seed, ORDER_STREAM], counter=[0, self.epoch, stream, 0])
        return np.random.Generator(philox)

    @lru_cache(maxsize=4)  # noqa: B019, few orders are in use
    def window(self, number: int) -> np.ndarray:
        """The shuffled positions of one window."""
        chunks = self._chunks[number * WINDOW : (number + 1) * WINDOW]
        positions = (chunks[:, None] * CHUNK + np.arange(CHUNK)).reshape(-1)
        positions = positions[positions < self.samples]
        self._generator(number + 1).shuffle(positions)
        return positions

    def _start(self, number: int) -> int:
        """The place in the epoch at which a window starts."""
        return number * WINDOW * CHUNK - (self._gap if self._short < number * WINDOW else 0)

    def __getitem__(self, places: slice) -> np.ndarray:
        """The positions of the samples at places start to stop - 1 of the epoch."""
        number = places.start // (WINDOW * CHUNK)
        parts = []
        while (start := self._start(number)) < places.stop:
            parts.append(self.window(number)[max(places.start - start, 0) : places.stop - start])
            number += 1
        return np.concatenate(parts)


@lru_cache(maxsize=2)
def epoch_order(samples: int, seed: int, epoch: int) -> Order:
    """The order of an epoch, cached for the last two epochs."""
    return Order(samples, seed, epoch)


@dataclass(frozen=True)
class Plan:
    """The samples of each step on one of `ranks` processes, which share every batch equally.

    first_epoch: the epoch of step 0; not 0 in a run that continues another.
    """

    samples: int
    batch_size: int  # over all processes
    seed: int
    rank: int = 0
    ranks: int = 1
    first_epoch: int = 0

    def __post_init__(self) -> None:
        if self.batch_size > self.samples:
            raise ValueError(
                f"batch_size={self.batch_size} exceeds the {self.samples} images; choose a smaller one"
            )
        if self.batch_size % self.ranks:
            raise ValueError(f"batch_size={self.batch_size} must be a multiple of the {self.ranks} processes")

    @property
    def steps_per_epoch(self) -> int:
        """Full batches per epoch."""
        return self.samples // self.batch_size

    @property
    def first_step(self) -> int:
        """The run's first step, counted from the start of the run that it continues."""
        return self.first_epoch * self.steps_per_epoch

    @property
    def share(self) -> int:
        """This process's samples per batch."""
        return self.batch_size // self.ranks

    def step(self, step: int) -> tuple[int, np.ndarray]:
        """The epoch of a step and the positions (share,) of this process's samples."""
        epochs, place = divmod(step, self.steps_per_epoch)
        epoch = self.first_epoch + epochs
        start, mine = place * self.batch_size, self.rank * self.share
        batch = epoch_order(self.samples, self.seed, epoch)[start : start + self.batch_size]
        by_chunk = np.argsort(batch // CHUNK * SCATTER % 2**32, kind="stable")
        return epoch, batch[by_chunk[mine : mine + self.share]]


def reduced(batch_size: int, samples: int) -> int:
    """The batch size, or if there are fewer samples, the largest power of two among them.

    A power of two can be shared by 2, 4 or 8 processes.
    """
    return batch_size if batch_size <= samples else 1 << max(1, samples.bit_length() - 1)


def plan_of(samples: int, batch_size: int, seed: int) -> Plan:
    """Batches shared by the ranks; if they cannot be split evenly, each rank takes whole batches."""
    shared = batch_size % ranks() == 0
    return Plan(samples, batch_size, seed, rank() if shared else 0, ranks() if shared else 1)
