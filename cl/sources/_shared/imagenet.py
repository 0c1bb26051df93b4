"""ImageNet's official archives, read in place: an image is a byte range of the tar; nothing is unpacked."""

import gzip
import io
import multiprocessing
import re
import tarfile
import zlib
from collections import defaultdict
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import scipy.io

from cl.console.wording import counted
from cl.runtime import stores
from cl.sources import Image, Splits
from cl.sources._shared.archives import members
from cl.sources._shared.class_folders import check_complete, class_folders

TRAIN, VAL, DEVKIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
META = "ILSVRC2012_devkit_t12/data/meta.mat"
TRUTH = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"


@dataclass(frozen=True)
class TarImage(Image):
    """An image of `length` bytes at `offset` in the archive `path`."""

    offset: int
    length: int

    def read(self) -> bytes:
        """Return the encoded image."""
        if stores.is_url(self.path):
            return stores.read(str(self.path), self.offset, self.offset + self.length)
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.length)


class Entry(NamedTuple):
    """The name of an image and its byte range in an archive."""

    name: str
    offset: int
    length: int


Entries = dict[str, list[Entry]]  # by wnid


def check_present(root: Path) -> None:
    """Check that there are class folders or archives.

    Raises:
        ValueError: there is neither.
    """
    if (root / "train").is_dir():
        return
    if missing := [name for name in (TRAIN, VAL, DEVKIT) if not (root / name).is_file()]:
        raise ValueError(
            f"no folder {root / 'train'}, and no file {root / missing[0]}; put the class folders "
            f"{{train,val}}/<wnid>/ or the archives {TRAIN}, {VAL} and {DEVKIT} into {root}, "
            "or set CL_RAW to the folder that holds the raw data sets"
        )


def list_images(root: Path, classes: list[str] | None = None) -> Splits:
    """List the images of the given classes, in their order, or of all; archives and folders give equal lists.

    Raises:
        ValueError: files are missing or damaged, or a class is missing.
    """
    check_present(root)
    if (root / "train").is_dir():
        return class_folders(root, classes)
    train = _train_entries(root / TRAIN)
    val = _val_entries(root / VAL, _val_classes(root / DEVKIT))
    if classes is None:
        classes = sorted(train)
    check_complete(root / TRAIN, classes, train)
    check_complete(root / VAL, classes, val)
    return Splits(classes, _images(root / TRAIN, train, classes), _images(root / VAL, val, classes))


def _images(path: Path, entries: Entries, classes: list[str]) -> list[Image]:
    """In the order of class folders: sorted by name within each class."""
    return [
        TarImage(f"{wnid}/{entry.name}", path, label, entry.offset, entry.length)
        for label, wnid in enumerate(classes)
        for entry in sorted(entries[wnid])
    ]


def _train_entries(path: Path) -> Entries:
    """Read the training archive: one tar per class inside a tar."""
    entries: Entries = defaultdict(list)
    for outer, folder in members(path):
        wnid = _name(folder, r"(n\d{8})\.tar", path)
        for _, member in members(path, outer.extractfile(folder)):
            name = _name(member, rf"({wnid}_\d+)\.JPEG", path)
            entries[wnid].append(Entry(name, folder.offset_data + member.offset_data, member.size))
    return entries


def _val_entries(path: Path, classes: list[str]) -> Entries:
    """Read the validation archive: one flat tar; image number i, from 1, belongs to `classes[i - 1]`."""
    named = [(_name(member, r"(ILSVRC2012_val_\d{8})\.JPEG", path), member) for _, member in members(path)]
    numbers = [int(name[-8:]) for name, _ in named]
    if sorted(numbers) != list(range(1, len(classes) + 1)):
        raise ValueError(
            f"{path} contains {counted(len(named), 'images')}, expected numbers 1 to {len(classes)} to match "
            f"the ground truth in {DEVKIT}; download both archives again"
        )
    entries: Entries = defaultdict(list)
    for number, (name, member) in zip(numbers, named, strict=True):
        entries[classes[number - 1]].append(Entry(name, member.offset_data, member.size))
    return entries


def _name(member: tarfile.TarInfo, pattern: str, path: Path) -> str:
    """The group in the pattern that a member's name must match; only plain files are accepted."""
    match = re.fullmatch(pattern, member.name)
    if not match or not member.isreg() or member.issparse():
        raise ValueError(
            f"{path} contains {member.name!r}, which is not in the official archive; download it again"
        )
    return match[1]


def _val_classes(devkit: Path) -> list[str]:
    """The wnid of every validation image."""
    files = _devkit_files(devkit)
    if missing := [name for name in (META, TRUTH) if name not in files]:
        raise ValueError(f"{devkit} lacks the file {missing[0]}; download the official archive again")
    try:
        wnids = _wnids(files[META])
        return [wnids[int(number)] for number in files[TRUTH].split()]
    except Exception as error:  # scipy may raise any type
        raise ValueError(
            f"{devkit}: {META} and {TRUTH} do not match or are damaged ({type(error).__name__}: {error}); "
            "download it again"
        ) from error


def _devkit_files(path: Path) -> dict[str, bytes]:
    """The files of the devkit by name."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged or incomplete ({error}); download it again") from error
    files = {m.name: m for _, m in members(path, io.BytesIO(content)) if m.isreg() and not m.issparse()}
    return {name: content[m.offset_data : m.offset_data + m.size] for name, m in files.items()}


def _wnids(meta: bytes) -> dict[int, str]:
    """The wnid of each class by its devkit number, read in a child process because damage can crash scipy."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_send_wnids, args=(meta, sender))
    child.start()
    sender.close()
    try:
        received = receiver.recv()  # or EOFError, if the child has crashed
    finally:
        child.join()
    if isinstance(received, Exception):
        raise received
    return received


def _send_wnids(meta: bytes, sender: Connection) -> None:
    try:
        synsets = scipy.io.loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
        pairs = zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)
        sender.send({int(number): str(wnid) for number, wnid in pairs})
    except Exception as error:  # scipy may raise any type
        sender.send(ValueError(f"{type(error).__name__}: {error}"))
