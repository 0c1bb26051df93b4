"""The images of torchvision's CIFAR archives."""

from pathlib import Path

from torchvision.datasets import CIFAR10

from cl.sources import Splits, raw_images
from cl.sources._shared.archives import ensure_unpacked


def cifar_splits(archive: type[CIFAR10], raw: Path) -> Splits:
    """List the images of a CIFAR archive; only files with the official md5 are unpickled."""
    folder = ensure_unpacked(archive, raw)
    train, test = (archive(raw, train=train) for train in (True, False))
    return Splits(
        train.classes,
        raw_images("train", folder, train.data, train.targets),
        raw_images("test", folder, test.data, test.targets),
    )
