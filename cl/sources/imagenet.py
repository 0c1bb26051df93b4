"""ImageNet (ILSVRC 2012): the official archives in `<raw>/imagenet/`, or class folders `<raw>/imagenet/{train,val}/<wnid>/`.

The archives are read where they lie: an image is a stretch of bytes of the tar, nothing is unpacked.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from cl.sources import Source, Splits
from cl.sources._shared.imagenet import of_classes


class Config(Source):
    """How many classes there must be: 1000."""

    kind: Literal["imagenet"]
    classes: int = Field(gt=0)


def splits(config: Config, raw: Path) -> Splits:
    """The images of every class; labels follow the sorted wnids, as everywhere.

    Raises:
        ValueError: files are missing or damaged, a class has no image, `val` has other classes than `train`, or they are
            not as many as ImageNet has.
    """
    found = of_classes(raw / "imagenet")
    if len(found.classes) != config.classes:
        raise ValueError(
            f"{raw / 'imagenet'} has {len(found.classes)} classes, expected the {config.classes} of ImageNet; "
            "for an own choice of class folders take dataset=folder dataset.name=imagenet"
        )
    return found
