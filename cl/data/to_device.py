"""Moves batches to the training device, where they are augmented and normalised."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice

import torch
from torch import Tensor

from cl.data import augment_bands
from cl.data.augment import augment
from cl.data.augment_gpu import require_fused
from cl.data.transform import Transform
from cl.data.views import View
from cl.objective.batch import Batch
from cl.runtime.machine import Machine, to_device


@dataclass(frozen=True)
class HostBatch:
    """V views of N images, before augmentation.

    images: V tensors (N, 3, S, S) uint8, or (N, C, S, S) float32 of bands; if the device crops, (N, 4) int64:
        left, top, right, bottom in the image.
    colour_params: (V, N, draws); each row is a `cl.data.views.ColourParams`, or a `BandParams` of
        `cl.data.augment_bands`.
    labels, positions, groups, positive, within: int64, as in `cl.objective.batch.Batch`.
    """

    images: list[Tensor]
    colour_params: Tensor
    labels: Tensor
    positions: Tensor
    groups: Tensor | None
    positive: Tensor | None
    within: Tensor | None


class ToDevice:
    """Moves a batch to the device, augments and normalises it; on a GPU, during the previous step."""

    def __init__(self, transform: Transform, views: list[View], here: Machine) -> None:
        self.device, self.fused, self.bands = here.device, here.fused, transform.bands
        self.kinds = [(kind, len(list(equal))) for kind, equal in groupby(views)]
        self.mean, self.std = transform.mean_and_std(here.device)
        self.stream = torch.cuda.Stream(here.device) if here.device.type == "cuda" else None
        if self.stream:  # mean, std and resident images are still being copied
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        if self.fused:
            require_fused(self.device)

    def __call__(self, batch: HostBatch) -> Batch:
        """The batch, ready for a method."""
        if self.stream is None:
            return self._batch(batch)
        with torch.cuda.stream(self.stream):
            ready = self._batch(batch)
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self.stream)
        for tensor in (*ready.views, *vars(ready).values()):
            if isinstance(tensor, Tensor):
                tensor.record_stream(current)
        return ready

    def crops(self, batch: HostBatch) -> Iterator[Tensor]:
        """The crops on the device, M equal views in one tensor (M N, 3, S, S) uint8."""
        images = iter(batch.images)
        for _, count in self.kinds:
            yield torch.cat([to_device(view, self.device) for view in islice(images, count)])

    def _batch(self, batch: HostBatch) -> Batch:
        views: list[Tensor] = []
        rows = batch.colour_params.split([count for _, count in self.kinds])
        # Equal views together: a GPU is faster with fewer, larger operations.
        for (view, count), images, colour_params in zip(self.kinds, self.crops(batch), rows, strict=True):
            params = colour_params.flatten(0, 1)
            if self.bands:
                ready = augment_bands.augment(images, params, view)
            else:
                ready = augment(images, params, view, mean=self.mean, std=self.std, fused=self.fused)
            views += ready.chunk(count)
        labels, positions = (to_device(x, self.device) for x in (batch.labels, batch.positions))
        others = (
            None if x is None else to_device(x, self.device)
            for x in (batch.groups, batch.positive, batch.within)
        )
        return Batch(views, labels, positions, *others)
