"""Class folders of images: `<root>/{train,val}/<class>/<image>`."""

import shlex
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from cl.images.folders import SUFFIXES, classes_in, images_below, is_class
from cl.images.image import Splits
from cl.images.listing import Listing

KAGGLE = "LOC_val_solution.csv"


def class_folders(root: Path, classes: list[str] | None = None, suffixes: set[str] = SUFFIXES) -> Splits:
    """List the images of `root/train` and `root/val`, of these classes in their order, or all by name."""
    check_layout(root)
    train_classes, val_classes = classes_in(root / "train"), classes_in(root / "val")
    if classes is None:
        classes = list(train_classes)
    if not classes:
        raise ValueError(f"no class folders in {root / 'train'}; put the images of each class into a folder")
    if not val_classes and any(path.is_file() for path in (root / "val").iterdir()):
        raise ValueError(f"{root / 'val'} contains files, but no class folders; {_sorting(root)}")
    check_complete(root / "train", classes, train_classes)
    check_complete(root / "val", classes, val_classes)
    if unknown := sorted(set(val_classes).difference(train_classes)):
        raise ValueError(
            f"{root / 'val'} contains the class {unknown[0]}, which is not in {root / 'train'}; "
            "add it there, or remove it here"
        )
    left_out = Counter[str]()
    train = _images(root / "train", [train_classes[name] for name in classes], left_out, suffixes)
    val = _images(root / "val", [val_classes[name] for name in classes], left_out, suffixes)
    return Splits(classes, train, val, +left_out)


def _sorting(root: Path) -> str:
    """The remedy for validation images without class folders."""
    if (root / KAGGLE).is_file():  # ImageId,PredictionString; the prediction starts with the class
        return (
            f"`cd {shlex.quote(str(root / 'val'))} && tail -n +2 ../{KAGGLE} | while IFS=', ' read -r image "
            'class _; do mkdir -p "$class" && mv "$image.JPEG" "$class"; done` sorts them'
        )
    return "put the images of each class into a folder"


def check_complete(path: Path, wanted: list[str], present: Iterable[str]) -> None:
    """Check that the folder or archive of a split contains all wanted classes."""
    if missing := sorted(set(wanted).difference(present)):
        raise ValueError(f"{path} lacks {len(missing)} of {len(wanted)} classes, starting with {missing[0]}")


def check_layout(root: Path) -> None:
    """Check that both splits have a folder."""
    for split in ("train", "val"):
        if not (root / split).is_dir():
            raise ValueError(
                f"no folder {root / split}; put the images at {root}/{{train,val}}/<class>/<image>, "
                "or set CL_RAW to the folder that holds the raw data sets"
            )


def _images(root: Path, folders: list[str], left_out: Counter[str], suffixes: set[str]) -> Listing:
    """List the images of all class folders, sorted by name; `left_out` counts other entries by reason."""
    left_out["next to the class folders"] += sum(not is_class(path) for path in root.iterdir())
    listed = Listing(root)
    for label, name in enumerate(folders):
        before = len(listed)
        for path, status in images_below(root, name, left_out, suffixes):
            listed.add(path, status, label)
        if len(listed) == before:
            raise ValueError(
                f"the class folder {root / name} contains no images ({', '.join(sorted(suffixes))}); "
                "add some, or remove the folder"
            )
    return listed
