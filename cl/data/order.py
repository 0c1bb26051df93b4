"""The order of samples: a pure function of the seed and the epoch, shuffled, and yet read in long stretches.

The samples of step t depend on (seed, t, number of samples, batch size) alone: a run that is resumed, or spread over other
numbers of workers and processes, sees the same batches. Within an epoch no sample comes twice; its incomplete last batch
is dropped.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

CHUNK = 64  # samples that lie side by side and are needed within the same window
WINDOW = 256  # chunks that are shuffled among each other
ORDER_STREAM = 2**63  # key of the order's random streams, apart from the samples'


class Order:
    """One epoch: chunks of neighbours in random order, and the samples of WINDOW chunks at a time shuffled.

    Memory is eight bytes a chunk, 125 MB for a billion images, and the windows that are being looked at.
    """

    def __init__(self, samples: int, seed: int, epoch: int) -> None:
        self.samples, self.seed, self.epoch = samples, seed, epoch
        self._chunks = self._generator(0).permutation(-(-samples // CHUNK))
        # The last chunk may be short; what lies behind it in this epoch comes so much earlier.
        self._gap = -samples % CHUNK
        self._short = int(np.flatnonzero(self._chunks == len(self._chunks) - 1)[0])
        self._windows: dict[int, np.ndarray] = {}  # the newest

    def _generator(self, stream: int) -> np.random.Generator:
        return np.random.Generator(
            np.random.Philox(key=[self.seed, ORDER_STREAM], counter=[0, self.epoch, stream, 0])
        )

    def window(self, number: int) -> np.ndarray:
        """The positions of one window in their order."""
        if number not in self._windows:
            if len(self._windows) == 4:
                del self._windows[next(iter(self._windows))]
            self._windows[number] = self._shuffled(number)
        return self._windows[number]

    def _shuffled(self, number: int) -> np.ndarray:
        chunks = self._chunks[number * WINDOW : (number + 1) * WINDOW]
        positions = (chunks[:, None] * CHUNK + np.arange(CHUNK)).reshape(-1)
        positions = positions[positions < self.samples]
        self._generator(number + 1).shuffle(positions)
        return positions

    def _start(self, number: int) -> int:
        """The place in the epoch at which a window begins."""
        return number * WINDOW * CHUNK - (self._gap if self._short < number * WINDOW else 0)

    def __getitem__(self, places: slice) -> np.ndarray:
        """The positions of the samples at the places start to stop - 1 of the epoch."""
        number = places.start // (WINDOW * CHUNK)
        parts = []
        while (start := self._start(number)) < places.stop:
            parts.append(self.window(number)[max(places.start - start, 0) : places.stop - start])
            number += 1
        return np.concatenate(parts)


@lru_cache(maxsize=2)
def epoch_order(samples: int, seed: int, epoch: int) -> Order:
    """The order of an epoch; the newest are kept."""
    return Order(samples, seed, epoch)


@dataclass(frozen=True)
class Plan:
    """Which samples make up which step of one of `ranks` processes: of every batch, each takes the same number in turn."""

    samples: int
    batch_size: int  # of all processes together
    seed: int
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.batch_size > self.samples:
            raise ValueError(
                f"batch_size={self.batch_size} is more than the {self.samples} images there are; choose a smaller one"
            )
        if self.batch_size % self.ranks:
            raise ValueError(
                f"batch_size={self.batch_size} is no multiple of the {self.ranks} processes; choose one that is"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Full batches an epoch."""
        return self.samples // self.batch_size

    @property
    def share(self) -> int:
        """How many samples of a batch are this process's."""
        return self.batch_size // self.ranks

    def step(self, step: int) -> tuple[int, np.ndarray]:
        """The epoch of a step and the positions (share,) of this process's samples."""
        epoch, place = divmod(step, self.steps_per_epoch)
        start = place * self.batch_size + self.rank * self.share
        return epoch, epoch_order(self.samples, self.seed, epoch)[start : start + self.share]
