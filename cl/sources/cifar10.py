"""CIFAR-10: the python batches as distributed, in `<raw>/cifar-10-batches-py/`, or downloaded."""

from pathlib import Path
from typing import Literal

from cl.images.image import Splits
from cl.sources._shared.cifar import CifarSource, cifar_splits


class Config(CifarSource):
    """See `CifarSource`."""

    kind: Literal["cifar10"]


def splits(config: Config, raw: Path) -> Splits:
    """List the 50,000 training and 10,000 test images of 32x32 pixels."""
    return cifar_splits("CIFAR10", raw, config.first)
