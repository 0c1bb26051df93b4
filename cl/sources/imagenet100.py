"""ImageNet-100: the 100 classes of `data/imagenet100.txt`, from ImageNet in `<raw>/imagenet`."""

from pathlib import Path
from typing import Literal

from cl.console.wording import counted
from cl.images.image import Splits
from cl.sources._shared.imagenet import ImageNetSource, list_images


class Config(ImageNetSource):
    """`list`: the file of wnids. Three lists circulate, so the manifest records a hash of the classes."""

    kind: Literal["imagenet100"]
    list: str


def splits(config: Config, raw: Path) -> Splits:
    """List the images of the listed classes; labels follow the list."""
    path = Path(config.list)
    if not path.is_file():
        raise ValueError(f"no class list {path}; create it with one wnid per line")
    classes = path.read_text(errors="replace").split()
    if not classes or len(set(classes)) < len(classes):
        raise ValueError(
            f"the class list {path} has {counted(len(classes), 'names')}, {len(set(classes))} distinct; "
            "list each wnid once, one per line"
        )
    return list_images(raw / "imagenet", classes)
