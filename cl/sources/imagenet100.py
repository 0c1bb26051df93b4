"""ImageNet-100: the 100 classes of `data/imagenet100.txt`, from ImageNet in `<raw>/imagenet`."""

from pathlib import Path
from typing import Literal

from cl.sources import Source, Splits
from cl.sources.imagenet import of_classes


class Config(Source):
    """The list of classes (wnids); three different lists circulate, so its hash is in the manifest."""

    kind: Literal["imagenet100"]
    list: str


def splits(config: Config, raw: Path) -> Splits:
    """The images of the listed classes; labels follow the list.

    Raises:
        ValueError: the list or a class is missing.
    """
    path = Path(config.list)
    if not path.is_file():
        raise ValueError(f"no class list {path}: one wnid a line is expected")
    return of_classes(raw / "imagenet", path.read_text().split())
