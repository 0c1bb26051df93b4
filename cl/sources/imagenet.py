"""ImageNet (ILSVRC 2012) in `<raw>/imagenet/`: the official archives, or class folders `{train,val}/<wnid>/`.

The archives are read in place: an image is a byte range of the tar, and nothing is unpacked.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from cl.console.wording import counted
from cl.images.image import Splits
from cl.sources._shared.imagenet import ImageNetSource, list_images


class Config(ImageNetSource):
    """`classes`: how many must be present, 1000."""

    kind: Literal["imagenet"]
    classes: int = Field(gt=0)


def splits(config: Config, raw: Path) -> Splits:
    """List the images of every class; labels follow the sorted wnids, as is customary."""
    listed = list_images(raw / "imagenet")
    if (count := len(listed.classes)) != config.classes:
        raise ValueError(
            f"{raw / 'imagenet'} has {counted(count, 'classes')}, expected the {config.classes} of ImageNet; "
            "for your own choice of class folders, use dataset=folder dataset.name=imagenet"
        )
    return listed
