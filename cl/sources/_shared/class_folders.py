"""Class folders of images: `<root>/{train,val}/<class>/<image>`."""

import os
from collections.abc import Iterator
from pathlib import Path

from cl.sources import Image, Splits

EXTENSIONS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}


def class_folders(root: Path, classes: list[str] | None = None) -> Splits:
    """The images of `root/train` and `root/val` in the order of their names; `classes` fixes the labels."""
    for split in ("train", "val"):
        if not (root / split).is_dir():
            raise ValueError(
                f"no folder {root / split}: put the images at {root}/{{train,val}}/<class>/<image>, "
                "or set CL_RAW to the folder that holds the raw data sets"
            )
    found = {
        split: sorted(p.name for p in (root / split).iterdir() if _is_class(p)) for split in ("train", "val")
    }
    for split, names in found.items():
        for name in names:
            _check_name(str(root / split / name))
    if classes is None:
        classes = found["train"]
    if not classes:
        raise ValueError(
            f"no class folder in {root / 'train'}: the images of a class go into a folder of its name"
        )
    for split, names in found.items():
        if missing := [c for c in classes if c not in names]:
            raise ValueError(
                f"{root / split} lacks {len(missing)} of {len(classes)} classes, the first is {missing[0]}"
            )
    if foreign := [c for c in found["val"] if c not in found["train"]]:
        raise ValueError(f"{root / 'val'} has the class {foreign[0]}, which {root / 'train'} has not")
    train, val = (_images(root / split, classes) for split in ("train", "val"))
    loose = sum(not _is_class(path) for split in ("train", "val") for path in (root / split).iterdir())
    return Splits(classes, train[0], val[0], ignored=train[1] + val[1] + loose)


def _is_class(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the name {path!a} is not in UTF-8: rename it") from error


def _images(root: Path, classes: list[str]) -> tuple[list[Image], int]:
    """The images of all classes, sorted by name, and how much else lies among them."""
    images, ignored = [], 0
    for label, name in enumerate(classes):
        entries = [*_below(root / name)]
        files = sorted(Path(entry.path) for entry in entries if _is_image(entry))
        if not files:
            raise ValueError(f"the class folder {root / name} has no image ({', '.join(sorted(EXTENSIONS))})")
        # WebDataset splits a name at its first dot.
        images += [Image(str(p.relative_to(root).with_suffix("")).replace(".", "_"), p, label) for p in files]
        ignored += len(entries) - len(files)
    return images, ignored


def _below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The files in a folder and in folders below it; of hidden folders only themselves."""
    with os.scandir(folder) as entries:
        for entry in entries:
            _check_name(entry.path)
            visible = not entry.name.startswith(".")
            if visible and entry.is_dir(follow_symlinks=False):
                yield from _below(Path(entry.path))
            elif (
                visible and entry.is_symlink() and Path(entry.path).is_dir()
            ):  # it may lead back to where it lies
                raise ValueError(
                    f"{entry.path} is a link to a folder: only class folders may be links; put the images there"
                )
            else:
                yield entry


def _is_image(entry: os.DirEntry[str]) -> bool:
    """By its name; a link to nowhere is one, which will be listed as unreadable, but nothing that blocks its reader is."""
    path = Path(entry.path)
    if path.name.startswith(".") or path.suffix.lower() not in EXTENSIONS:
        return False
    return entry.is_file(follow_symlinks=False) or (
        entry.is_symlink() and (path.is_file() or not path.exists())
    )
