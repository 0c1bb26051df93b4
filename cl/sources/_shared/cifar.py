"""The images of torchvision's CIFAR archives."""

from pathlib import Path

from pydantic import Field

from cl.images.image import Splits, raw_images
from cl.sources import Source
from cl.sources._shared.archives import ensure_unpacked


class CifarSource(Source):
    """`first`: only the first images of each split, for short experiments; null: all."""

    first: int | None = Field(gt=0, le=50_000, description="images")


def splits(config: CifarSource, raw: Path) -> Splits:
    """List the 50,000 training and 10,000 test images of 32x32; only official files are unpickled."""
    from torchvision import datasets  # late: torchvision takes seconds to import

    archive, first = getattr(datasets, config.kind.upper()), config.first
    folder = ensure_unpacked(archive, raw)
    train, test = (archive(raw, train=train) for train in (True, False))
    return Splits(
        train.classes,
        raw_images("train", folder, train.data[:first], train.targets[:first]),
        raw_images("test", folder, test.data[:first], test.targets[:first]),
    )
