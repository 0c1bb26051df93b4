"""Batches that worker processes fill, in memory that is shared and used again and again.

The workers of one `DataLoader` fill a batch together, a piece each, and hand over nothing: no copy, no pickle, and no file in
/dev/shm, which is small in containers.
"""

import math
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from torch.utils.data import DataLoader, Dataset

PIECE = 64  # rows of a batch that a worker fills at a time
AHEAD = 4  # pieces that a worker has before it
LAST = 60  # seconds that a worker goes on when it is told to end, so that its process can finish a step


@dataclass(frozen=True)
class Array:
    """One of the arrays of a batch: a row's shape, and its type."""

    shape: tuple[int, ...]
    dtype: type

    def allocate(self, rows: int, *, shared: bool) -> np.ndarray:
        """Memory for so many rows."""
        if not shared:
            return np.empty((rows, *self.shape), self.dtype)
        size = rows * math.prod(self.shape) * np.dtype(self.dtype).itemsize
        return np.frombuffer(mmap.mmap(-1, size), self.dtype).reshape(rows, *self.shape)


Fill = Callable[[int, slice, list[np.ndarray]], None]


def filled(
    fill: Fill, batches: range, rows: Callable[[int], int], arrays: list[Array], workers: int
) -> Iterator[list[np.ndarray]]:
    """The batches that `fill` makes, in their order.

    With workers, a batch is overwritten after the next but one was asked for.

    Args:
        fill: called as fill(batch, slice of rows, those rows of the arrays); in a worker, if there is one.
        batches: their numbers.
        rows: the number of rows of a batch, which is the same for all but the last, which may have fewer.
        arrays: what a batch is made of.
        workers: processes; none: this one.

    Raises:
        ValueError, OSError: as `fill`.
    """
    if workers == 0:
        for batch in batches:
            memory = [array.allocate(rows(batch), shared=False) for array in arrays]
            fill(batch, slice(0, rows(batch)), memory)
            yield memory
        return
    if not batches:
        return
    largest = rows(batches[0])
    # One that is in use, the one before, and those whose pieces the workers have before them.
    slots = 2 + math.ceil(AHEAD * workers / math.ceil(largest / PIECE))
    ring = [
        [array.allocate(largest, shared=True) for array in arrays] for _ in range(min(slots, len(batches)))
    ]
    loader = DataLoader(
        _Filling(fill, ring),
        batch_size=None,
        sampler=_Pieces(batches, rows, len(ring)),
        num_workers=workers,
        prefetch_factor=AHEAD,
        worker_init_fn=_start_worker,
        multiprocessing_context="fork",
    )
    done = iter(loader)
    for number, batch in enumerate(batches):
        for _ in range(0, rows(batch), PIECE):
            if error := next(done):
                raise error
        yield [array[: rows(batch)] for array in ring[number % len(ring)]]


@dataclass(frozen=True)
class _Pieces:
    """Batch, slot and rows of every piece, in their order."""

    batches: range
    rows: Callable[[int], int]
    slots: int

    def __iter__(self) -> Iterator[tuple[int, int, slice]]:
        for number, batch in enumerate(self.batches):
            for start in range(0, self.rows(batch), PIECE):
                yield batch, number % self.slots, slice(start, min(start + PIECE, self.rows(batch)))


class _Filling(Dataset):
    """Filling a piece as the item of a data set; what goes wrong is handed over without the worker's traceback."""

    def __init__(self, fill: Fill, ring: list[list[np.ndarray]]) -> None:
        self.fill, self.ring = fill, ring

    def __getitem__(self, piece: tuple[int, int, slice]) -> Exception | None:
        batch, slot, rows = piece
        try:
            self.fill(batch, rows, [array[rows] for array in self.ring[slot]])
        except (ValueError, OSError) as error:
            return error
        return None


def _start_worker(worker: int) -> None:
    """Lowest priority: a worker that competes with the training threads slows them more than it helps.

    Signals are the main process's matter, which finishes its step first: Ctrl-C reaches workers too, and so may a scheduler's
    SIGTERM, which they survive by a minute.
    """
    os.nice(19)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(LAST))
