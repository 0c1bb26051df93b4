"""ImageNet (ILSVRC 2012): the official archives in `<raw>/imagenet/`, or class folders `<raw>/imagenet/{train,val}/<wnid>/`.

The archives are read where they lie: an image is a stretch of bytes of the tar, nothing is unpacked.
"""

import io
import re
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import scipy.io

from cl.sources import Image, Source, Splits
from cl.sources.folder import class_folders

TRAIN, VAL, DEVKIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
META = "ILSVRC2012_devkit_t12/data/meta.mat"
TRUTH = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"


class Config(Source):
    """Nothing to choose."""

    kind: Literal["imagenet"]


@dataclass(frozen=True)
class TarImage(Image):
    """An image of `length` bytes from `offset` on in the archive `path`."""

    offset: int
    length: int

    def read(self) -> bytes:
        """The encoded image."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.length)


def splits(config: Config, raw: Path) -> Splits:
    """The images of every class; labels follow the sorted wnids, as everywhere.

    Raises:
        ValueError: files are missing or damaged, a class has no image, or `val` has other classes than `train`.
    """
    return of_classes(raw / "imagenet")


def of_classes(root: Path, classes: list[str] | None = None) -> Splits:
    """The images of some classes, in their order, or of all; the same from archives as from folders."""
    if (root / "train").is_dir():
        return class_folders(root, classes)
    if missing := [name for name in (TRAIN, VAL, DEVKIT) if not (root / name).is_file()]:
        raise ValueError(
            f"no folder {root / 'train'}, and no file {root / missing[0]}: put the class folders "
            f"{{train,val}}/<wnid>/ or the archives {TRAIN}, {VAL} and {DEVKIT} into {root}, "
            "or set CL_RAW to the folder that holds the raw data sets"
        )
    train, val = _train(root / TRAIN), _val(root / VAL, _truth(root / DEVKIT))
    classes = sorted(train) if classes is None else classes
    for name, found in ((TRAIN, train), (VAL, val)):
        if lacking := [wnid for wnid in classes if wnid not in found]:
            raise ValueError(f"{root / name} lacks {len(lacking)} of {len(classes)} classes, the first is {lacking[0]}")
    return Splits(classes, *(_labelled(found, classes) for found in (train, val)))


Found = dict[str, list[tuple[str, Path, int, int]]]  # by wnid: name, archive, offset and length of each image


def _labelled(found: Found, classes: list[str]) -> list[Image]:
    """Sorted as the files of class folders are."""
    return [
        TarImage(f"{wnid}/{name}", path, label, offset, length)
        for label, wnid in enumerate(classes)
        for name, path, offset, length in sorted(found[wnid])
    ]


def _train(path: Path) -> Found:
    """A tar for each class inside a tar."""
    found: Found = defaultdict(list)
    with _opened(path) as outer:
        for folder in outer:
            wnid = _name(folder, r"(n\d{8})\.tar", path)
            with tarfile.open(fileobj=outer.extractfile(folder), mode="r:") as inner:
                for member in inner:
                    name = _name(member, r"(n\d{8}_\d+)\.JPEG", path)
                    found[wnid].append((name, path, folder.offset_data + member.offset_data, member.size))
    return found


def _val(path: Path, truth: list[str]) -> Found:
    """One flat tar; image i is of the class on line i of the ground truth."""
    found: Found = defaultdict(list)
    with _opened(path) as tar:
        for member in tar:
            name = _name(member, r"(ILSVRC2012_val_\d{8})\.JPEG", path)
            number = int(name[-8:])
            if not 1 <= number <= len(truth):
                raise ValueError(f"{path} has {name}, but the ground truth has {len(truth)} lines")
            found[truth[number - 1]].append((name, path, member.offset_data, member.size))
    return found


def _truth(devkit: Path) -> list[str]:
    """The wnid of every validation image."""
    with _opened(devkit, "r:gz") as tar:
        files = {}
        for name in (META, TRUTH):
            file = tar.extractfile(name) if name in tar.getnames() else None
            if file is None:
                raise ValueError(f"{devkit} has no file {name}: get the official archive again")
            files[name] = file.read()
    synsets = scipy.io.loadmat(io.BytesIO(files[META]), squeeze_me=True)["synsets"]
    wnids = {int(number): str(wnid) for number, wnid in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)}
    return [wnids[int(number)] for number in files[TRUTH].split()]


@contextmanager
def _opened(path: Path, mode: Literal["r:", "r:gz"] = "r:") -> Iterator[tarfile.TarFile]:
    """A tar archive whose damage ends in a sentence."""
    try:
        with tarfile.open(path, mode) as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path} is no complete archive ({error}): get it again") from error


def _name(member: tarfile.TarInfo, pattern: str, path: Path) -> str:
    """What the pattern picks out of a member's name; anything but a file of such a name is refused."""
    match = re.fullmatch(pattern, member.name)
    if not match or not member.isreg():
        raise ValueError(f"{path} has {member.name!r}, which the official archive has not: get it again")
    return match[1]
