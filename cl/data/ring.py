"""Batches filled by worker processes in a ring of shared memory.

The workers of one `DataLoader` fill a batch together, a slice of rows each, and send nothing back: no copy,
no pickle, and no file in /dev/shm, which is small in containers.
"""

import gc
import math
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_all_start_methods

import numpy as np
from torch.utils.data import DataLoader, Dataset

from cl.runtime.forking import ctrl_c_delayed, exit_with_parent

SLICE = 64  # rows that a worker fills at a time
AHEAD = 4  # slices queued per worker
GRACE = 60  # seconds that a worker survives SIGTERM, for the main process to finish its step


@dataclass(frozen=True)
class Array:
    """An array of a batch: shape and type of a row."""

    shape: tuple[int, ...]
    dtype: type

    @property
    def bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def allocate(self, rows: int, *, shared: bool) -> np.ndarray:
        if not shared:
            return np.empty((rows, *self.shape), self.dtype)
        memory = mmap.mmap(-1, rows * self.bytes)
        return np.frombuffer(memory, self.dtype).reshape(rows, *self.shape)


Fill = Callable[[int, slice, list[np.ndarray]], None]


def filled(
    fill: Fill, batches: range, rows: Callable[[int], int], arrays: list[Array], workers: int
) -> Iterator[list[np.ndarray]]:
    """The batches that `fill` writes, in order; with workers, a batch's memory is reused two batches later.

    Args:
        fill: called as fill(batch, slice of rows, those rows of the arrays), by the workers.
        rows: the number of rows of a batch; only the last batch may have fewer.
        workers: number of processes; 0, or where none can be forked: the calling process fills the batches.

    Raises:
        ValueError, OSError: raised by `fill`.
    """
    if workers and batches and "fork" in get_all_start_methods():
        yield from _filled_by_workers(fill, batches, rows, arrays, workers)
        return
    for batch in batches:
        memory = [array.allocate(rows(batch), shared=False) for array in arrays]
        fill(batch, slice(0, rows(batch)), memory)
        yield memory


def batches_ahead(rows: int, workers: int) -> int:
    """The number of batches of `rows` rows that the workers fill ahead of the one in use."""
    return math.ceil(AHEAD * workers / math.ceil(rows / SLICE))


def _filled_by_workers(
    fill: Fill, batches: range, rows: Callable[[int], int], arrays: list[Array], workers: int
) -> Iterator[list[np.ndarray]]:
    largest = rows(batches[0])
    # Batches ahead, the batch in use, and the one before it.
    slots = min(2 + batches_ahead(largest, workers), len(batches))
    ring = [[array.allocate(largest, shared=True) for array in arrays] for _ in range(slots)]
    loader = DataLoader(
        _Filling(fill, ring),
        batch_size=None,
        sampler=_slices(batches, rows, slots),
        num_workers=workers,
        prefetch_factor=AHEAD,
        worker_init_fn=_start_worker,
        multiprocessing_context="fork",
    )
    with ctrl_c_delayed():
        gc.freeze()  # workers leave garbage alone: it may hold CUDA tensors, which only this process can free
        done = iter(loader)
        gc.unfreeze()
    for number, batch in enumerate(batches):
        for _ in range(0, rows(batch), SLICE):
            if error := next(done):
                raise error
        yield [array[: rows(batch)] for array in ring[number % slots]]


def _slices(batches: range, rows: Callable[[int], int], slots: int) -> Iterator[tuple[int, int, slice]]:
    """Batch, slot in the ring and rows of every slice, in order."""
    for number, batch in enumerate(batches):
        for start in range(0, rows(batch), SLICE):
            yield batch, number % slots, slice(start, min(start + SLICE, rows(batch)))


class _Filling(Dataset):
    """A data set whose items fill a slice each. It returns errors, to hide the worker's traceback."""

    def __init__(self, fill: Fill, ring: list[list[np.ndarray]]) -> None:
        self.fill, self.ring = fill, ring

    def __getitem__(self, item: tuple[int, int, slice]) -> Exception | None:
        batch, slot, rows = item
        try:
            self.fill(batch, rows, [array[rows] for array in self.ring[slot]])
        except (ValueError, OSError) as error:
            return error
        return None


def _start_worker(worker: int) -> None:
    """Lower the priority, because a worker that competes with training threads slows them more than it helps.

    The main process handles signals and finishes its step first. Workers therefore ignore Ctrl-C and survive
    a scheduler's SIGTERM for GRACE seconds; they end when it is killed.
    """
    exit_with_parent()
    os.nice(19)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(GRACE))
