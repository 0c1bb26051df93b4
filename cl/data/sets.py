"""Batches of views for training, in the order of `cl.data.order`, and whole splits for evaluation."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from cl.data import augment_bands, ring
from cl.data.order import CHUNK, WINDOW, Plan
from cl.data.reader import Reader
from cl.data.to_device import HostBatch, ToDevice
from cl.data.transform import Transform
from cl.data.views import (
    DRAWS,
    RandomNumbers,
    View,
    cut_patches,
    draw_colour_params,
    random_crop_box,
    resize,
)
from cl.runtime.machine import Machine

PREFETCHED = CHUNK * WINDOW // 2  # samples prefetched from remote shards, over all processes


class TrainSet:
    """The batch of each step, normalised as in `transform`; `subset`: use only these positions."""

    def __init__(
        self,
        reader: Reader,
        transform: Transform,
        views: list[View],
        plan: Plan,
        subset: np.ndarray | None = None,
    ) -> None:
        self.reader, self.transform, self.plan, self.subset = reader, transform, plan, subset
        self.views = [view for view in views for _ in range(view.count)]
        self.copies = [copy for view in views for copy in range(view.count)]  # 0 for the first of each kind
        assert (len(reader) if subset is None else len(subset)) == plan.samples

    def samples(self, step: int) -> tuple[int, np.ndarray]:
        """The epoch of a step, and the positions (N,) of its samples in the index."""
        epoch, places = self.plan.step(step)
        return epoch, places if self.subset is None else self.subset[places]

    @property
    def arrays(self) -> list[ring.Array]:
        """The arrays of a batch: the images of each view, and the parameters of their colour operations."""
        views = [self.transform.array(view.size) for view in self.views]
        draws = augment_bands.draws(self.transform.channels) if self.transform.bands else DRAWS
        return [*views, ring.Array((len(self.views), draws), np.float32)]

    def fill(self, step: int, rows: slice, arrays: list[np.ndarray]) -> None:
        """Write some rows of a step's batch; runs in the data workers."""
        *images, colour_params = arrays
        epoch, positions = self.samples(step)
        if rows.start == 0:
            self.prefetch(step)
        for row, position in enumerate(positions[rows].tolist()):
            pixels = self.reader.pixels(position)  # one decode for all views
            for number, (view, copy) in enumerate(zip(self.views, self.copies, strict=True)):
                rng = RandomNumbers(self.plan.seed, epoch, position, number)
                if view.jigsaw is None:
                    box = random_crop_box(pixels.shape[:2], view.area, rng)
                    resize(pixels, box, view, images[number][row : row + 1], self.transform.bands)
                elif copy == 0:  # gives all patches
                    cut_patches(pixels, view, rng, [x[row] for x in images[number : number + view.count]])
                colour_params[row, number] = self._draw(view, rng)

    def _draw(self, view: View, rng: RandomNumbers) -> Sequence[float]:
        if self.transform.bands:
            return augment_bands.draw_band_params(view, rng, self.transform.channels)
        return draw_colour_params(view, rng)

    def prefetch(self, step: int) -> None:
        """Prefetch the images of this and the next steps, if the shards are remote."""
        if self.reader.remote:
            steps = range(step, step + 1 + PREFETCHED // self.plan.batch_size)
            self.reader.prefetch(np.concatenate([self.samples(later)[1] for later in steps]))

    def batches(self, start: int, stop: int, workers: int) -> Iterator[HostBatch]:
        """Batches of steps start to stop - 1; with workers, a batch's memory is reused two batches later."""
        filled = ring.filled(self.fill, range(start, stop), lambda _: self.plan.share, self.arrays, workers)
        for step, (*images, colour_params) in enumerate(filled, start):
            yield self.batch(step, images, colour_params)

    def batch(self, step: int, images: list[np.ndarray], colour_params: np.ndarray) -> HostBatch:
        """The batch of a step, from the arrays that `fill` wrote."""
        positions, groups = self.samples(step)[1], self.reader.never_negatives
        values = {role: torch.from_numpy(each[positions]) for role, each in self.reader.values.items()}
        together = self.plan.neighbours.together if self.plan.neighbours else 1
        positive = values["positive"].unflatten(0, (-1, together)) if together > 1 else None
        return HostBatch(
            [_channels_first(x) for x in images],
            torch.from_numpy(colour_params).transpose(0, 1),
            torch.from_numpy(self.reader.labels(positions)),
            torch.from_numpy(positions),
            None if groups is None else torch.from_numpy(groups[positions]),
            positive,
            values.get("within"),
        )

    def inputs(self, here: Machine) -> ToDevice:
        """A function that moves a batch to the device, augments and normalises it."""
        return ToDevice(self.transform, self.views, here)

    def __getitem__(self, step: int) -> HostBatch:
        return next(self.batches(step, step + 1, 0))


class EvalSet:
    """Images in the evaluation view: at `positions`, or all in the order of the index."""

    def __init__(self, reader: Reader, transform: Transform, positions: np.ndarray | None = None) -> None:
        self.reader, self.transform = reader, transform
        self.positions = np.arange(len(reader)) if positions is None else positions

    def __len__(self) -> int:
        return len(self.positions)

    def batches(self, batch_size: int, workers: int) -> Iterator[Tensor]:
        """All images as `Transform.view`, in batches (N, C, S, S), N <= batch_size; memory is reused."""
        starts = range(0, len(self), batch_size)

        def fill(start: int, rows: slice, arrays: list[np.ndarray]) -> None:
            if rows.start == 0:
                self.reader.prefetch(self.positions[start : start + batch_size + PREFETCHED])
            for row, position in enumerate(self.positions[start + rows.start : start + rows.stop].tolist()):
                arrays[0][row] = self.transform.view(self.reader.pixels(position))

        def rows(start: int) -> int:
            return min(batch_size, len(self) - start)

        array = self.transform.array(self.transform.crop)
        for (images,) in ring.filled(fill, starts, rows, [array], workers):
            yield _channels_first(images)


def _channels_first(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images).movedim(-1, 1)
