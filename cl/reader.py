"""Batches of views in an order that depends on the seed alone.

The samples of step t are a pure function of (seed, t, number of samples, batch size): a run that is resumed, or spread
over more workers, sees the same batches. Within an epoch no sample comes twice; its incomplete last batch is dropped.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cl.shards import Reader
from cl.views import DRAWS, View, centre, crop, draw_colour, generator

CHUNK = 64  # samples that lie side by side and are read together
WINDOW = 16384  # samples that are shuffled among each other
ORDER_STREAM = 2**63  # key of the order's random stream, apart from the samples'


@lru_cache(maxsize=2)
def epoch_order(samples: int, seed: int, epoch: int) -> np.ndarray:
    """A permutation of `samples` positions: chunks in random order, then shuffled within windows of many chunks."""
    rng = np.random.Generator(np.random.Philox(key=[seed, ORDER_STREAM], counter=[0, epoch, 0, 0]))
    chunks = rng.permutation(-(-samples // CHUNK))
    order = (chunks[:, None] * CHUNK + np.arange(CHUNK)).reshape(-1)
    order = order[order < samples]
    for start in range(0, samples, WINDOW):
        rng.shuffle(order[start : start + WINDOW])
    return order


@dataclass(frozen=True)
class Plan:
    """Which samples make up which step."""

    samples: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if self.batch_size > self.samples:
            raise ValueError(
                f"batch_size={self.batch_size} is more than the {self.samples} images there are; choose a smaller one"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Full batches an epoch."""
        return self.samples // self.batch_size

    def step(self, step: int) -> tuple[int, np.ndarray]:
        """The epoch of a step and the positions (batch_size,) of its samples."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = epoch_order(self.samples, self.seed, epoch)
        return epoch, order[place * self.batch_size : (place + 1) * self.batch_size]


@dataclass(frozen=True)
class Batch:
    """V views of N images.

    images: V tensors (N, 3, S, S) uint8. drawn: (V, N, DRAWS), the parameters of the colour operations.
    labels, positions: (N,) int64.
    """

    images: list[Tensor]
    drawn: Tensor
    labels: Tensor
    positions: Tensor


class TrainSet(Dataset):
    """The batch of each step; `subset` restricts it to some positions of the index."""

    def __init__(self, reader: Reader, views: list[View], plan: Plan, subset: np.ndarray | None = None) -> None:
        self.reader, self.plan = reader, plan
        self.views = [view for view in views for _ in range(view.count)]
        self.subset = np.arange(len(reader)) if subset is None else subset
        assert len(self.subset) == plan.samples

    def __getitem__(self, step: int) -> Batch:
        epoch, places = self.plan.step(step)
        positions = self.subset[places]
        images = [np.empty((len(positions), view.size, view.size, 3), np.uint8) for view in self.views]
        drawn = np.empty((len(self.views), len(positions), DRAWS), np.float32)
        for row, position in enumerate(positions):
            picture = self.reader.picture(position)  # one decode for all views
            for number, view in enumerate(self.views):
                rng = generator(self.plan.seed, epoch, int(position), number)
                images[number][row] = crop(picture, view, rng)
                drawn[number, row] = draw_colour(view, rng)
        return Batch(
            [torch.from_numpy(x).permute(0, 3, 1, 2) for x in images],
            torch.from_numpy(drawn),
            torch.from_numpy(self.reader.labels[positions]),
            torch.from_numpy(positions),
        )

    def batches(self, start: int, stop: int, workers: int) -> Iterator[Batch]:
        """The batches of steps start to stop - 1."""
        return iter(_loader(self, range(start, stop), workers))


class EvalSet(Dataset):
    """Every sample once, in the order of the index, in the evaluation's view."""

    def __init__(self, reader: Reader, *, resize: int, crop: int, positions: np.ndarray | None = None) -> None:
        self.reader, self.resize, self.crop = reader, resize, crop
        self.positions = np.arange(len(reader)) if positions is None else positions

    def __getitem__(self, block: slice) -> Tensor:
        """(N, 3, S, S) uint8."""
        pictures = [self.reader.picture(p) for p in self.positions[block]]
        return torch.from_numpy(np.stack([centre(p, self.resize, self.crop) for p in pictures])).permute(0, 3, 1, 2)

    def batches(self, batch_size: int, workers: int) -> Iterator[Tensor]:
        """All samples in blocks of at most `batch_size`."""
        starts = range(0, len(self.positions), batch_size)
        return iter(_loader(self, [slice(start, start + batch_size) for start in starts], workers))


def _loader(dataset: Dataset, sampler, workers: int) -> DataLoader:  # type: ignore[no-untyped-def]
    return DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=workers, worker_init_fn=_start_worker)


def _start_worker(worker: int) -> None:
    """Lowest priority: a worker that competes with the training threads slows them more than it helps.

    Signals are the main process's matter: Ctrl-C reaches workers too, and the handlers they inherit would keep them alive.
    """
    os.nice(19)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
