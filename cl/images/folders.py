"""Image files in a tree of folders: which files count, how their names are checked."""

import hashlib
import heapq
import itertools
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path, PurePath, PurePosixPath
from stat import S_ISDIR
from typing import Any
from unicodedata import normalize

from cl.images.contents import ARRAY, ZARR, images_of, stack_of
from cl.runtime.files import UNREACHABLE
from cl.runtime.stores import files_below, is_url

SUFFIXES = {
    *(".jpg", ".jpeg", ".png", ".bmp", ".webp", ".avif", ".heic", ".heif"),
    *(".ppm", ".pgm", ".tif", ".tiff"),
}
RUN = 100_000  # lines sorted in memory at a time
SIZED = 10_000  # files whose sizes enter `summary`
# Files that may change and keep their size.
PLAIN = (".bmp", ".dcm", ".dicom", ".npy", ".npz", ".ozx", ".pgm", ".ppm", ".tif", ".tiff")
# Characters that XML and HTML forbid, and line breaks.
UNPRINTABLE = re.compile("[^\t\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Folders of thumbnails, deleted files, snapshots and metadata on Synology, QNAP, Windows, macOS and Linux.
SYSTEM = {
    *("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@sharebin"),
    *("$recycle.bin", "recycler", "system volume information"),
    *("__macosx", "network trash folder", "temporary items", "lost+found"),
}


def images_below(
    root: Path, folder: str, left_out: Counter[str], suffixes: set[str] = SUFFIXES
) -> Iterator[tuple[str, str]]:
    """The images in a folder and its subfolders, sorted by path.

    Args:
        folder: relative to the root; "" for the root itself.
        left_out: counts other entries by reason.

    Yields:
        The path relative to the root; the size and version.

    Raises:
        ValueError: a name contains a line break or is not valid UTF-8, or a folder is a link.
    """
    prefix = f"{folder}/" if folder else ""
    list_files = _objects_below if is_url(root) else _files_below
    lines = (f"{prefix}{name}\0{status}\n" for name, status in list_files(root / folder, left_out, suffixes))
    for line in sorted_on_disk(lines, lambda line: line.partition("\0")[0].split("/")):  # folder by folder
        name, _, status = line[:-1].partition("\0")
        yield name, status


def _files_below(folder: Path, left_out: Counter[str], suffixes: set[str]) -> Iterator[tuple[str, str]]:
    """The images in a local folder and its subfolders: paths relative to the folder, and `status_of` each."""
    with os.scandir(folder) as entries:
        for entry in entries:
            check_name(entry.path)
            is_image, hidden = is_image_folder(entry.name, suffixes), why_hidden(entry.name)
            if not (is_image or hidden) and _is_folder(entry):
                for name, status in _files_below(Path(entry.path), left_out, suffixes):
                    yield f"{entry.name}/{name}", status
                continue
            reason = hidden or wrong_suffix(PurePath(entry.name), suffixes)
            if reason or not (is_image or _is_file(entry)):
                left_out[reason or "no regular files"] += 1
                continue
            for path in images_of(entry.path) if ARRAY in suffixes else [entry.path]:
                yield PurePath(path).name, status_of(entry)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    if entry.is_symlink() and os.path.isdir(entry.path):  # noqa: PTH112, as in `_is_file`
        raise ValueError(
            f"{entry.path} is a link to a folder, which may lead to a loop; put the images there instead"
        )
    return entry.is_dir(follow_symlinks=False)


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Also a broken link, which packing will report."""
    # os.path, unlike pathlib, treats a link into a folder without permission as broken
    is_broken = entry.is_symlink() and not os.path.exists(entry.path)  # noqa: PTH110
    return is_broken or entry.is_file()


def sorted_on_disk(lines: Iterable[str], key: Callable[[str], Any]) -> Iterator[str]:
    """Sort lines, each with its line break: runs go to temporary files, which are then merged."""
    remaining = iter(lines)
    with ExitStack() as stack:
        runs = []
        while run := sorted(itertools.islice(remaining, RUN), key=key):
            runs.append(stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n")))
            runs[-1].writelines(run)
            runs[-1].seek(0)
        yield from heapq.merge(*runs, key=key)


def status_of(file: Path | os.DirEntry[str]) -> str:
    """The size and newest modification time of a file or folder, or of the file that contains an image.

    "missing" for a broken link, which packing will report.
    """
    try:
        status = file.stat()
        inside = [each.stat() for each in Path(file).rglob("*")] if S_ISDIR(status.st_mode) else []
    except OSError as error:
        if error.errno not in UNREACHABLE:
            raise
        stack = stack_of(Path(file))
        return status_of(stack[0]) if stack else "missing"
    newest = max(each.st_mtime_ns for each in (status, *inside))
    return f"{status.st_size + sum(each.st_size for each in inside)} {newest}"


def _objects_below(root: Path, left_out: Counter[str], suffixes: set[str]) -> Iterator[tuple[str, str]]:
    """As `_files_below`, for a URL; with the size and the store's version."""
    for name, status in files_below(str(root)):
        reasons = [*map(why_hidden, name.split("/")), wrong_suffix(PurePosixPath(name), suffixes)]
        if reason := next(filter(None, reasons), ""):
            left_out[reason] += 1
        else:
            check_name(name)
            yield name, status


def is_image_folder(path: Path | str, suffixes: set[str]) -> bool:
    """Whether the name is that of an OME-Zarr folder, and those count as images."""
    return ZARR in suffixes and str(path).lower().endswith(ZARR)


def why_hidden(name: str) -> str:
    """Why the name of a file or folder leaves it out; empty if it does not."""
    if name.startswith("."):
        return "hidden"
    return "of the system, such as @eaDir" if name.casefold() in SYSTEM else ""


def wrong_suffix(path: PurePath, suffixes: set[str] = SUFFIXES) -> str:
    """Why the suffix of a file leaves it out; empty for an image suffix."""
    suffix = path.suffix.lower()
    if suffix in suffixes:
        return ""
    if suffix[1:].isdecimal():  # DICOM files may end in a number
        return "with a number as suffix"
    return f"with suffix {suffix}" if suffix else "without a suffix"


def check_name(path: str) -> None:
    """Raises ValueError if a manifest cannot contain a name: one with a line break, or not valid UTF-8."""
    if "\n" in path:
        raise ValueError(f"the name {path!r} contains a line break; rename it")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the name {path!a} is not valid UTF-8; rename it") from error


def summary(root: Path) -> str:
    """The number of files below a folder, and a hash of their names and of the sizes of the first SIZED.

    For PLAIN and OME-Zarr ones, also of their times. On a network, asking for millions would take minutes.
    Hidden files and system folders do not count. A folder that several links lead to counts once.
    """
    count, digest, seen = 0, hashlib.sha256(), set[str]()
    for folder, folders, files in os.walk(root, followlinks=True):
        if (place := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(place)
        folders[:] = sorted(name for name in folders if not why_hidden(name))
        for name in sorted(name for name in files if not why_hidden(name)):
            path = f"{folder}/{name}"
            status = status_of(Path(path)) if count < SIZED else "0"
            if not path.lower().endswith(PLAIN) and f"{ZARR}/" not in path.lower():
                status = status.partition(" ")[0]
            digest.update(f"{path.removeprefix(str(root))}\0{status}\n".encode(errors="surrogateescape"))
            count += 1
    return f"{count} files, {digest.hexdigest()}"


def class_of(name: str) -> str | None:
    """The class of an image in class folders: the first folder of its path; None beside the folders."""
    folder, is_inside, _ = name.partition("/")
    return normalize("NFC", folder) if is_inside else None


def classes_in(root: Path) -> dict[str, str]:
    """The class folders in a folder by the name of their class, as in `class_of`, sorted; they may be links.

    Raises:
        ValueError: a name is refused, or two folders are one class.
    """
    folders: dict[str, str] = {}
    for name in sorted(path.name for path in root.iterdir() if is_class(path)):
        check_name(str(root / name))
        check_printable(name, str(root))
        if folders.setdefault(normalize("NFC", name), name) != name:
            raise ValueError(
                f"{root} has two folders {name}, whose accents are encoded differently; merge them"
            )
    return folders


def is_class(path: Path) -> bool:
    """Whether it is a class folder."""
    return path.is_dir() and not why_hidden(path.name)


def check_printable(name: str, place: str) -> None:
    """Raises ValueError if pages cannot show a name: one with a character of UNPRINTABLE."""
    if match := UNPRINTABLE.search(name):
        raise ValueError(f"{place}: the name {name!a} contains the control character {match[0]!a}; rename it")
