"""Any folder of class folders: `<raw>/<name>/train/<class>/<image>` and `<raw>/<name>/val/<class>/<image>`."""

from pathlib import Path
from typing import Literal

from cl.sources import Image, Source, Splits

EXTENSIONS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}


class Config(Source):
    """An own data set by the name of its folder."""

    kind: Literal["folder"]
    name: str


def splits(config: Config, raw: Path) -> Splits:
    """The images below `raw/<name>`; the classes are the folders of `train`, sorted by name.

    Raises:
        ValueError: a folder is missing, a class has no image, or `val` has a class that `train` has not.
    """
    return class_folders(raw / config.name)


def class_folders(root: Path, classes: list[str] | None = None) -> Splits:
    """The images of `root/train` and `root/val` in the order of their names; `classes` fixes the labels."""
    for split in ("train", "val"):
        if not (root / split).is_dir():
            raise ValueError(
                f"no folder {root / split}: put the images at {root}/{{train,val}}/<class>/<image>, "
                "or set CL_RAW to the folder that holds the raw data sets"
            )
    found = {split: sorted(p.name for p in (root / split).iterdir() if p.is_dir()) for split in ("train", "val")}
    if classes is None:
        classes = found["train"]
    if not classes:
        raise ValueError(f"no class folder in {root / 'train'}: the images of a class go into a folder of its name")
    for split, names in found.items():
        if missing := [c for c in classes if c not in names]:
            raise ValueError(f"{root / split} lacks {len(missing)} of {len(classes)} classes, the first is {missing[0]}")
    if foreign := [c for c in found["val"] if c not in found["train"]]:
        raise ValueError(f"{root / 'val'} has the class {foreign[0]}, which {root / 'train'} has not")
    return Splits(classes, _images(root / "train", classes), _images(root / "val", classes))


def _images(root: Path, classes: list[str]) -> list[Image]:
    images = []
    for label, name in enumerate(classes):
        files = sorted(p for p in (root / name).rglob("*") if p.suffix.lower() in EXTENSIONS)
        if not files:
            raise ValueError(f"the class folder {root / name} has no image ({', '.join(sorted(EXTENSIONS))})")
        # WebDataset splits a name at its first dot.
        images += [Image(str(p.relative_to(root).with_suffix("")).replace(".", "_"), p, label) for p in files]
    return images
