"""ImageNet: all class folders of `<raw>/imagenet/{train,val}/<wnid>/`, 1000 of them in ILSVRC 2012."""

from pathlib import Path
from typing import Literal

from cl.sources import Source, Splits
from cl.sources.folder import class_folders


class Config(Source):
    """Nothing to choose."""

    kind: Literal["imagenet"]


def splits(config: Config, raw: Path) -> Splits:
    """The images of every class; labels follow the sorted wnids, as everywhere.

    Raises:
        ValueError: a folder is missing, a class has no image, or `val` has other classes than `train`.
    """
    return class_folders(raw / "imagenet")
