"""The order of samples: a function of seed and epoch, shuffled, yet read from disk in long stretches.

The samples of step t depend only on (seed, t, number of samples, batch size), so a run sees the same batches
after a resume and with any number of workers and processes. No sample appears twice in an epoch; the
incomplete last batch is dropped. A batch is divided among processes by chunk, so most chunks are read by one
or two processes instead of all.

Where images of one value of a column are drawn together (`Neighbours`), the order is shuffled over the whole
split instead, and a batch is divided between such images.
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
        self._chunks = _generator(seed, epoch, 0).permutation(-(-samples // CHUNK))
        # The last chunk may be short, so later places in this epoch shift by the gap.
        self._gap = -samples % CHUNK
        self._short = int(np.flatnonzero(self._chunks == len(self._chunks) - 1)[0])

    @lru_cache(maxsize=4)  # noqa: B019, few orders are in use
    def window(self, number: int) -> np.ndarray:
        """The shuffled positions of one window."""
        chunks = self._chunks[number * WINDOW : (number + 1) * WINDOW]
        positions = (chunks[:, None] * CHUNK + np.arange(CHUNK)).reshape(-1)
        positions = positions[positions < self.samples]
        _generator(self.seed, self.epoch, number + 1).shuffle(positions)
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


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Which images follow each other in a batch, as far as a value has enough of them.

    positive: (n,) int64, equal for images that are positives of each other; `per_value` of these are drawn
        together. None: images are drawn one by one.
    within: (n,) int64, equal for images that are negatives of each other; `per_batch` runs of equal ones make
        a batch. A run takes the value of the first of images that are drawn together. None: no runs.
    """

    positive: np.ndarray | None
    within: np.ndarray | None
    per_value: int
    per_batch: int

    @property
    def together(self) -> int:
        """How many images are drawn together."""
        return 1 if self.positive is None else self.per_value

    def check(self, batch_size: int, share: int) -> None:
        """Raises ValueError if images drawn together do not fill batches and processes' shares of them."""
        runs = 1 if self.within is None else self.per_batch
        if share % self.together or batch_size % (runs * self.together):
            raise ValueError(
                f"batch_size={batch_size}, {share} images on each process, must be a multiple of "
                f"{runs * self.together}: {runs} times {self.together} images are drawn together; choose one "
                "that is, or change dataset.per_value or dataset.within_values"
            )

    def order(self, samples: int, batch_size: int, rng: np.random.Generator) -> np.ndarray:
        """The positions of an epoch; fewer than a batch are left out."""
        units = np.arange(samples)[:, None]  # images drawn together, one row for each set
        run = batch_size // (self.per_batch * self.together)
        for values, length in ((self.positive, self.per_value), (self.within, run)):
            if values is not None:
                runs = _runs(values[units[:, 0]], length, rng)
                units = units[runs].reshape(len(runs), -1)
        return units.reshape(-1)


def _runs(values: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """(n // length, length) positions of `values` (n,), in random rows of one value while there are enough.

    What a value has left over fills further rows, beside the rest of another random value.
    """
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    order = rng.permutation(len(values))
    shuffled = rng.permutation(len(counts))  # the values in random order
    order = order[np.argsort(shuffled[codes[order]], kind="stable")]
    counts = counts[np.argsort(shuffled)]
    place = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)  # within its value
    whole = place < np.repeat(counts // length * length, counts)
    rows = np.concatenate([order[whole], order[~whole]])
    return rng.permutation(rows[: len(rows) // length * length].reshape(-1, length))


@lru_cache(maxsize=2)
def epoch_order(samples: int, seed: int, epoch: int) -> Order:
    """The order of an epoch, cached for the last two epochs."""
    return Order(samples, seed, epoch)


@lru_cache(maxsize=2)
def grouped_order(neighbours: Neighbours, samples: int, batch_size: int, seed: int, epoch: int) -> np.ndarray:
    """The positions of an epoch in which images are drawn together; cached as `epoch_order`."""
    return neighbours.order(samples, batch_size, _generator(seed, epoch, 0))


def _generator(seed: int, epoch: int, stream: int) -> np.random.Generator:
    philox = np.random.Philox(key=[seed, ORDER_STREAM], counter=[0, epoch, stream, 0])
    return np.random.Generator(philox)


@dataclass(frozen=True)
class Plan:
    """The samples of each step on one of `ranks` processes, which share every batch equally.

    first_epoch: the epoch of step 0; not 0 in a run that continues another.
    neighbours: which images are drawn together; None: each image is drawn by itself.
    """

    samples: int
    batch_size: int  # over all processes
    seed: int
    rank: int = 0
    ranks: int = 1
    first_epoch: int = 0
    neighbours: Neighbours | None = None

    def __post_init__(self) -> None:
        if self.batch_size > self.samples:
            raise ValueError(
                f"batch_size={self.batch_size} exceeds the {self.samples} images; choose a smaller one"
            )
        if self.batch_size % self.ranks:
            raise ValueError(f"batch_size={self.batch_size} must be a multiple of the {self.ranks} processes")
        if self.neighbours:
            self.neighbours.check(self.batch_size, self.share)

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
        if self.neighbours:
            order = grouped_order(self.neighbours, self.samples, self.batch_size, self.seed, epoch)
            return epoch, order[start + mine : start + mine + self.share]
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
