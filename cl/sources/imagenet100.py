"""ImageNet-100: the 100 classes of `data/imagenet100.txt`, from ImageNet in `<raw>/imagenet`."""

from pathlib import Path
from typing import Literal

from cl.sources import Source, Splits
from cl.sources._shared.imagenet import of_classes


class Config(Source):
    """The list of classes (wnids); three different lists circulate, so its hash is in the manifest."""

    kind: Literal["imagenet100"]
    list: str


def splits(config: Config, raw: Path) -> Splits:
    """The images of the listed classes; labels follow the list.

    Raises:
        ValueError: the list is missing, is empty or names a class twice, or a class is missing.
    """
    path = Path(config.list)
    if not path.is_file():
        raise ValueError(f"no class list {path}: one wnid a line is expected")
    classes = path.read_text(errors="replace").split()
    twice = [wnid for wnid in classes if classes.count(wnid) > 1]
    if twice or not classes:
        found = f"names {twice[0]} {classes.count(twice[0])} times" if twice else "is empty"
        raise ValueError(f"the class list {path} {found}: one wnid a line is expected, each once")
    return of_classes(raw / "imagenet", classes)
