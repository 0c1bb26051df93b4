"""CIFAR-10: the python batches as distributed, in `<raw>/cifar-10-batches-py/` (`cl.sources._shared.archives` fetches them)."""

from pathlib import Path
from typing import Literal

from torchvision.datasets import CIFAR10

from cl.sources import Source, Splits
from cl.sources._shared.cifar import batches


class Config(Source):
    """Nothing to choose."""

    kind: Literal["cifar10"]


def splits(config: Config, raw: Path) -> Splits:
    """50,000 training and 10,000 test images of 32x32 pixels.

    Raises:
        ValueError: the download fails, or a file is another than the official one.
    """
    return batches(CIFAR10, raw)
