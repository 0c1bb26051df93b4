"""Detectors from two libraries behind one interface; each module is an engine and exports `Detector`."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from PIL.Image import Image
from torch import Tensor, nn

from cl.detection.average_precision import Detections
from cl.detection.samples import Sample


class Detector(Protocol):
    """An `nn.Module`: a detector on a pretrained backbone, with all of its layers trained.

    `Detector(config, backbone, dataset, transform)` takes over or copies the backbone's tensors; images are
    normalised by the transform's `mean` and `std`, as in pretraining.
    """

    @property
    def pretrained(self) -> nn.Module:
        """The pretrained layers that feed the proposals: stem to res4 (C4) or to res5 (FPN)."""

    def item(self, sample: Sample) -> Any:
        """One image in the form that `forward` takes; called from several threads."""

    def forward(self, items: list[Any]) -> dict[str, Tensor]:
        """The losses of a batch, by name."""

    def detect(self, picture: Image) -> Detections:
        """The detections in an image, in its pixels."""

    def write(self, out: Path) -> None:
        """Write files that document its configuration."""


def engine(name: str) -> ModuleType:
    """An engine's module; raises ValueError if its library is not installed."""
    try:
        return importlib.import_module(f"cl.detection.engines.{name}")
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ValueError(
            f"engine={name}: {name} is not installed; run `make {name}`, or choose engine=torchvision"
        ) from error
