"""Class folders of images: `<root>/{train,val}/<class>/<image>`."""

import os
from collections.abc import Container, Iterator
from pathlib import Path

from cl.sources import Image, Splits

EXTENSIONS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}


def class_folders(root: Path, classes: list[str] | None = None) -> Splits:
    """List the images of `root/train` and `root/val`, sorted by name.

    Args:
        classes: the class folders to use, in the order of their labels; None uses all, sorted by name.

    Raises:
        ValueError: a folder or an image is missing, the classes differ between splits, or a name
            or link is refused.
    """
    _check_layout(root)
    train_classes, val_classes = _class_names(root / "train"), _class_names(root / "val")
    if classes is None:
        classes = train_classes
    if not classes:
        raise ValueError(f"no class folders in {root / 'train'}; put the images of each class into a folder")
    check_complete(root / "train", classes, train_classes)
    check_complete(root / "val", classes, val_classes)
    if unknown := [name for name in val_classes if name not in train_classes]:
        raise ValueError(
            f"{root / 'val'} contains the class {unknown[0]}, which is not in {root / 'train'}; "
            "add it there, or remove it here"
        )
    train, train_ignored = _images(root / "train", classes)
    val, val_ignored = _images(root / "val", classes)
    return Splits(classes, train, val, train_ignored + val_ignored)


def check_complete(path: Path, wanted: list[str], present: Container[str]) -> None:
    """Refuse a split, in a folder or an archive, that lacks a class.

    Raises:
        ValueError: one of the wanted classes is not present.
    """
    if missing := [name for name in wanted if name not in present]:
        raise ValueError(f"{path} lacks {len(missing)} of {len(wanted)} classes, starting with {missing[0]}")


def _check_layout(root: Path) -> None:
    for split in ("train", "val"):
        if not (root / split).is_dir():
            raise ValueError(
                f"no folder {root / split}; put the images at {root}/{{train,val}}/<class>/<image>, "
                "or set CL_RAW to the folder that holds the raw data sets"
            )


def _class_names(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if _is_class(path))
    for name in names:
        _check_utf8(str(folder / name))
    return names


def _is_class(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _check_utf8(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the name {path!a} is not valid UTF-8; rename it") from error


def _images(root: Path, classes: list[str]) -> tuple[list[Image], int]:
    """List the images of all classes, sorted by name, and count what is ignored."""
    images = []
    ignored = sum(not _is_class(path) for path in root.iterdir())
    for label, name in enumerate(classes):
        entries = list(_entries_below(root / name))
        files = sorted(Path(entry.path) for entry in entries if _is_image(entry))
        if not files:
            raise ValueError(
                f"the class folder {root / name} contains no images ({', '.join(sorted(EXTENSIONS))}); "
                "add some, or remove the folder"
            )
        images += [Image(_key(path.relative_to(root)), path, label) for path in files]
        ignored += len(entries) - len(files)
    return images, ignored


def _key(path: Path) -> str:
    return str(path.with_suffix("")).replace(".", "_")  # WebDataset splits a name at its first dot


def _entries_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The files in a folder and its subfolders; a hidden folder counts as one entry."""
    with os.scandir(folder) as entries:
        for entry in entries:
            _check_utf8(entry.path)
            visible = not entry.name.startswith(".")
            if visible and entry.is_dir(follow_symlinks=False):
                yield from _entries_below(Path(entry.path))
                continue
            if visible and entry.is_symlink() and Path(entry.path).is_dir():  # it may lead to a loop
                raise ValueError(
                    f"{entry.path} is a link to a folder, but only class folders may be links; "
                    "put the images there instead"
                )
            yield entry


def _is_image(entry: os.DirEntry[str]) -> bool:
    """Whether it is named like an image and cannot block a reader; broken links count, and fail when read."""
    path = Path(entry.path)
    if path.name.startswith(".") or path.suffix.lower() not in EXTENSIONS:
        return False
    if entry.is_symlink():
        return path.is_file() or not path.exists()
    return entry.is_file()
