"""The images of torchvision's CIFAR archives."""

from pathlib import Path

from pydantic import Field

from cl.images.image import Splits, raw_images
from cl.sources import Source
from cl.sources._shared.archives import ensure_unpacked


class CifarSource(Source):
    """`first`: only the first images of each split, for short experiments; null: all."""

    first: int | None = Field(gt=0, le=50_000, description="images")


def cifar_splits(name: str, raw: Path, first: int | None) -> Splits:
    """List the images of CIFAR10 or CIFAR100; only files with the official md5 are unpickled."""
    from torchvision import datasets  # late: torchvision takes seconds to import

    archive = getattr(datasets, name)
    folder = ensure_unpacked(archive, raw)
    train, test = (archive(raw, train=train) for train in (True, False))
    return Splits(
        train.classes,
        raw_images("train", folder, train.data[:first], train.targets[:first]),
        raw_images("test", folder, test.data[:first], test.targets[:first]),
    )
