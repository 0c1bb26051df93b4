"""CIFAR-100 (fine labels): the python files as distributed, in `<raw>/cifar-100-python/`, or downloaded."""

from pathlib import Path
from typing import Literal

from cl.images.image import Splits
from cl.sources._shared.cifar import CifarSource, cifar_splits


class Config(CifarSource):
    """See `CifarSource`."""

    kind: Literal["cifar100"]


def splits(config: Config, raw: Path) -> Splits:
    """List the 50,000 training and 10,000 test images of 32x32 pixels in 100 classes."""
    return cifar_splits("CIFAR100", raw, config.first)
