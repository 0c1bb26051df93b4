"""Batches on the training device."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cl.data.augment import augment
from cl.data.views import View
from cl.runtime.machine import to_device
from cl.sources import Source

if TYPE_CHECKING:
    from cl.data.sets import Batch


class ToDevice:
    """Batches on the device, augmented and normalised; on a GPU while it is busy with the step before."""

    def __init__(self, source: Source, views: list[View], device: torch.device) -> None:
        self.device, self.views = device, views
        self.mean, self.std = normalisation(source, device)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, batch: "Batch") -> tuple[list[Tensor], Tensor]:
        """V views (N, 3, S, S) float32 and labels (N,)."""
        if self.stream is None:
            return self._augmented(batch), batch.labels
        with torch.cuda.stream(self.stream):
            views, labels = self._augmented(batch), to_device(batch.labels, self.device)
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self.stream)
        for tensor in (*views, labels):
            tensor.record_stream(current)
        return views, labels

    def _augmented(self, batch: "Batch") -> list[Tensor]:
        return [
            augment(to_device(images, self.device), colour_params, view, mean=self.mean, std=self.std)
            for images, colour_params, view in zip(batch.images, batch.colour_params, self.views, strict=True)
        ]


def normalisation(source: Source, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (3, 1, 1) of RGB in [0, 1]."""
    return tuple(torch.tensor(value, device=device).view(3, 1, 1) for value in (source.mean, source.std))  # type: ignore[return-value]
