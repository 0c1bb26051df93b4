"""Detectors of two libraries behind one interface: each module is an engine and exports `Detector` and `evaluate`."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from PIL.Image import Image
from torch import Tensor, nn

from cl.detection.average_precision import Detections
from cl.detection.samples import Sample


class Detector(Protocol):
    """A detector with all its layers in training, built on a pretrained backbone.

    `Detector(config, backbone, dataset, source)` takes over or copies what the backbone holds; `mean` and `std` of the source
    are those the backbone was trained with. It is an `nn.Module`.
    """

    @property
    def pretrained(self) -> nn.Module:
        """The pretrained layers before the proposals: stem to res4 (C4) or to res5 (FPN)."""

    @property
    def predictor(self) -> nn.Module:
        """Gives a tuple whose first entry are the classes' logits, (regions, classes + 1)."""

    def item(self, sample: Sample) -> Any:
        """What `forward` takes for one image; made in a thread."""

    def forward(self, items: list[Any]) -> dict[str, Tensor]:
        """The losses of a batch, by name."""

    def detect(self, picture: Image) -> Detections:
        """What is found in an image, in its pixels."""

    def write(self, out: Path) -> None:
        """Files that say how it was configured."""


def engine(name: str) -> ModuleType:
    """The module of an engine.

    Raises:
        ValueError: its library is not installed.
    """
    try:
        return importlib.import_module(f"cl.detection.engines.{name}")
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ValueError(
            f"engine={name}: {name} is not installed; `make {name}` compiles it, "
            "or choose engine=torchvision, which runs the same protocol on its own detectors"
        ) from error
