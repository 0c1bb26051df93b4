"""CIFAR-10: the python batches as distributed, in `<raw>/cifar-10-batches-py/` (`cl.sources._shared.archives` fetches them)."""

from pathlib import Path
from typing import Literal

from torchvision.datasets import CIFAR10

from cl.sources import Source, Splits, raw_images
from cl.sources._shared.archives import unpacked


class Config(Source):
    """Nothing to choose."""

    kind: Literal["cifar10"]


def splits(config: Config, raw: Path) -> Splits:
    """50,000 training and 10,000 test images of 32x32 pixels.

    Raises:
        ValueError: the download fails, or a file is another than the official one.
    """
    return batches(CIFAR10, raw)


def batches(archive: type[CIFAR10], raw: Path) -> Splits:
    """The images of one of torchvision's CIFAR archives; only files with the official md5 are unpickled."""
    folder = unpacked(archive, raw)
    train, test = (archive(raw, train=train) for train in (True, False))
    return Splits(
        train.classes,
        raw_images("train", folder, train.data, train.targets),
        raw_images("test", folder, test.data, test.targets),
    )
