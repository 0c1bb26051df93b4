"""CIFAR-100, fine labels: the python files as distributed, in `<raw>/cifar-100-python/` (`cl.sources._shared.archives` fetches them)."""

from pathlib import Path
from typing import Literal

from torchvision.datasets import CIFAR100

from cl.sources import Source, Splits
from cl.sources._shared.cifar import batches


class Config(Source):
    """Nothing to choose."""

    kind: Literal["cifar100"]


def splits(config: Config, raw: Path) -> Splits:
    """50,000 training and 10,000 test images of 32x32 pixels in 100 classes.

    Raises:
        ValueError: the download fails, or a file is another than the official one.
    """
    return batches(CIFAR100, raw)
