"""The images of torchvision's CIFAR archives."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from cl.images.image import Splits, raw_images
from cl.sources import Source
from cl.sources._shared.archives import ensure_unpacked

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10


class CifarSource(Source):
    """`first`: only the first images of each split, for short experiments; null: all."""

    first: int | None = Field(gt=0, le=50_000, description="images")


def cifar_splits(archive: "type[CIFAR10]", raw: Path, first: int | None) -> Splits:
    """List the images of a CIFAR archive; only files with the official md5 are unpickled."""
    folder = ensure_unpacked(archive, raw)
    train, test = (archive(raw, train=train) for train in (True, False))
    return Splits(
        train.classes,
        raw_images("train", folder, train.data[:first], train.targets[:first]),
        raw_images("test", folder, test.data[:first], test.targets[:first]),
    )
