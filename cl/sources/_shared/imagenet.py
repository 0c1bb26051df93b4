"""ImageNet's official archives, read in place: an image is a byte range of the tar; nothing is unpacked."""

import hashlib
import io
import re
import tarfile
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

from cl.console.wording import counted
from cl.images.image import UNLABELLED, Image, Splits
from cl.runtime import stores
from cl.sources import Source
from cl.sources._shared.archives import members
from cl.sources._shared.class_folders import check_complete, class_folders

TRAIN, VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT, DEVKIT_MD5 = "ILSVRC2012_devkit_t12.tar.gz", "fa75699e90414af021442c21a62c3abf"
META = "ILSVRC2012_devkit_t12/data/meta.mat"
TRUTH = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"


@dataclass(frozen=True)
class TarImage(Image):
    """An image of `length` bytes at `offset` in the archive `path`."""

    offset: int
    length: int

    def read(self) -> bytes:
        if stores.is_url(self.path):
            return stores.read(str(self.path), self.offset, self.offset + self.length)
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.length)


ByWnid = dict[str, list[TarImage]]  # not labelled yet


class ImageNetSource(Source):
    """ImageNet in `<raw>/imagenet`."""

    def check_present(self, raw: Path) -> None:
        _check_present(raw / "imagenet")


def _check_present(root: Path) -> None:
    if (root / "train").is_dir():
        return
    if missing := [name for name in (TRAIN, VAL, DEVKIT) if not (root / name).is_file()]:
        raise ValueError(
            f"no folder {root / 'train'}, and no file {root / missing[0]}; put the class folders "
            f"{{train,val}}/<wnid>/ or the archives {TRAIN}, {VAL} and {DEVKIT} into {root}, "
            "or set CL_RAW to the folder that holds the raw data sets"
        )


def list_images(root: Path, classes: list[str] | None = None) -> Splits:
    """List the images of all classes, or of these in their order; archives and folders give equal lists."""
    _check_present(root)
    if (root / "train").is_dir():
        return class_folders(root, classes)
    train = _train_images(root / TRAIN)
    val = _val_images(root / VAL, _val_classes(root / DEVKIT))
    if classes is None:
        classes = sorted(train)
    check_complete(root / TRAIN, classes, train)
    check_complete(root / VAL, classes, val)
    return Splits(classes, _labelled(train, classes), _labelled(val, classes))


def _labelled(images: ByWnid, classes: list[str]) -> list[Image]:
    """The labelled images in the order of class folders: by class, then by name."""
    return [
        replace(image, label=label)
        for label, wnid in enumerate(classes)
        for image in sorted(images[wnid], key=lambda image: image.key)
    ]


def _train_images(path: Path) -> ByWnid:
    """List the training archive: a tar with one tar per class."""
    images: ByWnid = defaultdict(list)
    for outer, folder in members(path):
        wnid = _name(folder, r"(n\d{8})\.tar", path)
        for _, member in members(path, outer.extractfile(folder)):
            name = _name(member, rf"({wnid}_\d+)\.JPEG", path)
            start = folder.offset_data + member.offset_data
            images[wnid].append(TarImage(f"{wnid}/{name}", path, UNLABELLED, start, member.size))
    return images


def _val_images(path: Path, classes: list[str]) -> ByWnid:
    """List the validation archive, a flat tar; image number i, from 1, belongs to `classes[i - 1]`."""
    named = [(_name(member, r"(ILSVRC2012_val_\d{8})\.JPEG", path), member) for _, member in members(path)]
    numbers = [int(name[-8:]) for name, _ in named]
    if sorted(numbers) != list(range(1, len(classes) + 1)):
        raise ValueError(
            f"{path} contains {counted(len(named), 'images')}, expected numbers 1 to {len(classes)} to match "
            f"the ground truth in {DEVKIT}; download both archives again"
        )
    images: ByWnid = defaultdict(list)
    for number, (name, member) in zip(numbers, named, strict=True):
        wnid = classes[number - 1]
        images[wnid].append(TarImage(f"{wnid}/{name}", path, UNLABELLED, member.offset_data, member.size))
    return images


def _name(member: tarfile.TarInfo, pattern: str, path: Path) -> str:
    """The first group of the pattern in a member's name; only plain files whose name matches are accepted."""
    match = re.fullmatch(pattern, member.name)
    if not match or not member.isreg() or member.issparse():
        raise ValueError(
            f"{path} contains {member.name!r}, which is not in the official archive; download it again"
        )
    return match[1]


def _val_classes(devkit: Path) -> list[str]:
    """The wnid of every validation image. Damage can crash scipy, so it reads only the official devkit."""
    from scipy.io import loadmat  # late: slow to import

    content = devkit.read_bytes()
    if (actual := hashlib.md5(content).hexdigest()) != DEVKIT_MD5:
        raise ValueError(f"{devkit} has md5 {actual}, expected {DEVKIT_MD5}; download it again")
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        meta, truth = (cast(IO[bytes], tar.extractfile(name)).read() for name in (META, TRUTH))
    synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
    wnids = dict(zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True))
    return [wnids[int(number)] for number in truth.split()]
