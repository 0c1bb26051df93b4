"""ImageNet's official archives, read where they lie: an image is a stretch of bytes of the tar, nothing is unpacked."""

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

import scipy.io

from cl.sources import Image, Splits
from cl.sources._shared.archives import members
from cl.sources._shared.class_folders import class_folders

TRAIN, VAL, DEVKIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
META = "ILSVRC2012_devkit_t12/data/meta.mat"
TRUTH = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"


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
            raise ValueError(
                f"{root / name} lacks {len(lacking)} of {len(classes)} classes, the first is {lacking[0]}"
            )
    return Splits(classes, _labelled(train, classes), _labelled(val, classes))


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
    for outer, folder in members(path):
        wnid = _name(folder, r"(n\d{8})\.tar", path)
        for _, member in members(path, outer.extractfile(folder)):
            name = _name(member, rf"({wnid}_\d+)\.JPEG", path)
            found[wnid].append((name, path, folder.offset_data + member.offset_data, member.size))
    return found


def _val(path: Path, truth: list[str]) -> Found:
    """One flat tar; image i is of the class on line i of the ground truth."""
    files = [(_name(member, r"(ILSVRC2012_val_\d{8})\.JPEG", path), member) for _, member in members(path)]
    if sorted(int(name[-8:]) for name, _ in files) != list(range(1, len(truth) + 1)):
        raise ValueError(
            f"{path} has {len(files)} images, expected number 1 to {len(truth)}, as the ground truth of {DEVKIT} has lines: "
            "get both archives again"
        )
    found: Found = defaultdict(list)
    for name, member in files:
        found[truth[int(name[-8:]) - 1]].append((name, path, member.offset_data, member.size))
    return found


def _truth(devkit: Path) -> list[str]:
    """The wnid of every validation image."""
    files = _devkit(devkit)
    if missing := [name for name in (META, TRUTH) if name not in files]:
        raise ValueError(f"{devkit} has no file {missing[0]}: get the official archive again")
    try:
        wnids = _wnids(files[META])
        return [wnids[int(number)] for number in files[TRUTH].split()]
    except Exception as error:  # of whatever type scipy chooses
        raise ValueError(
            f"{devkit}: {META} and {TRUTH} do not fit together or are damaged ({type(error).__name__}: {error}): get it again"
        ) from error


def _wnids(meta: bytes) -> dict[int, str]:
    """The wnid of each class by its number in the devkit, read by a child process, as damaged tables can crash scipy."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_send_wnids, args=(meta, sender))
    child.start()
    sender.close()
    try:
        found = receiver.recv()  # or EOFError, if the child has crashed
    finally:
        child.join()
    if isinstance(found, Exception):
        raise found
    return found


def _send_wnids(meta: bytes, sender: Connection) -> None:
    try:
        synsets = scipy.io.loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
        pairs = zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)
        sender.send({int(number): str(wnid) for number, wnid in pairs})
    except Exception as error:  # of whatever type scipy chooses
        sender.send(ValueError(f"{type(error).__name__}: {error}"))


def _devkit(path: Path) -> dict[str, bytes]:
    """The files of the devkit by name."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is no complete archive ({error}): get it again") from error
    files = {m.name: m for _, m in members(path, io.BytesIO(content)) if m.isreg() and not m.issparse()}
    return {name: content[m.offset_data : m.offset_data + m.size] for name, m in files.items()}


def _name(member: tarfile.TarInfo, pattern: str, path: Path) -> str:
    """What the pattern picks out of a member's name; anything but a plain file of such a name is refused."""
    match = re.fullmatch(pattern, member.name)
    if not match or not member.isreg() or member.issparse():
        raise ValueError(f"{path} has {member.name!r}, which the official archive has not: get it again")
    return match[1]
