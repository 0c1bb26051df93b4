"""The image files in a tree of folders: which they are, what they are called, and which are held out."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePath, PurePosixPath

from cl.runtime.files import UNREACHABLE
from cl.runtime.stores import files_below, is_url
from cl.sources._shared.listing import sorted_on_disk

SUFFIXES = {
    ".jpg",
    ".jpeg",
    ".png",
    ".bmp",
    ".webp",
    ".ppm",
    ".pgm",
    ".tif",
    ".tiff",
    ".avif",
    ".heic",
    ".heif",
}
SIZED = 10_000
# What XML and HTML may not contain, and line breaks.
UNPRINTABLE = re.compile("[^\t\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Folders of thumbnails, deleted files, snapshots and metadata: of Synology, QNAP, Windows, macOS and Linux.
SYSTEM = {
    *("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@sharebin"),
    *("$recycle.bin", "recycler", "system volume information"),
    *("__macosx", "network trash folder", "temporary items", "lost+found"),
}


def images_below(root: Path, folder: str, left_out: Counter[str]) -> Iterator[tuple[str, str]]:
    """The images in a folder of the root and its subfolders, sorted as paths.

    Args:
        folder: relative to the root; "" for the root itself.
        left_out: counts other entries by reason.

    Yields:
        The path relative to the root, and the size and version.

    Raises:
        ValueError: a name contains a line break or is not valid UTF-8, or a folder is a link.
    """
    prefix = f"{folder}/" if folder else ""
    found = _objects_below if is_url(root) else _files_below
    lines = (f"{prefix}{name}\0{status}\n" for name, status in found(root / folder, left_out))
    for line in sorted_on_disk(lines, _parts):
        name, _, status = line[:-1].partition("\0")
        yield name, status


def _parts(line: str) -> list[str]:
    """The parts of a path, so that the images of a folder are together."""
    return line.partition("\0")[0].split("/")


def _files_below(root: Path, left_out: Counter[str]) -> Iterator[tuple[str, str]]:
    """The images in a folder of this machine and its subfolders: paths relative to it, and their status."""
    for entry, inside in _entries_below(root):
        if reason := inside or _why_left_out(entry):
            left_out[reason] += 1
            continue
        name = entry.path.removeprefix(os.path.join(root, ""))  # noqa: PTH118, a Path has no trailing slash
        try:
            status = entry.stat()
            yield name, f"{status.st_size} {status.st_mtime_ns}"
        except OSError as error:  # a broken link, which will be counted as unreadable
            if error.errno not in UNREACHABLE:
                raise
            yield name, "missing"


def _objects_below(root: Path, left_out: Counter[str]) -> Iterator[tuple[str, str]]:
    """The same for a URL."""
    for name, status in files_below(str(root)):
        reasons = [*map(why_hidden, name.split("/")), wrong_suffix(PurePosixPath(name))]
        if reason := next(filter(None, reasons), ""):
            left_out[reason] += 1
        else:
            check_name(name)
            yield name, status


def _entries_below(folder: Path, inside: str = "") -> Iterator[tuple[os.DirEntry[str], str]]:
    """The files in a folder and its subfolders, with the reason if they are in one to leave out.

    A hidden folder counts as one file.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            check_name(entry.path)
            visible = not entry.name.startswith(".")
            if visible and entry.is_dir(follow_symlinks=False):
                yield from _entries_below(Path(entry.path), inside or why_hidden(entry.name))
                continue
            if visible and not inside and entry.is_symlink() and os.path.isdir(entry.path):  # noqa: PTH112, as below
                raise ValueError(
                    f"{entry.path} is a link to a folder, which may lead to a loop; "
                    "put the images there instead"
                )
            yield entry, inside


def _why_left_out(entry: os.DirEntry[str]) -> str:
    """The reason; empty for an image. A broken link counts as one, and fails when it is read."""
    path = Path(entry.path)
    if reason := why_hidden(path.name) or wrong_suffix(path):
        return reason
    if not entry.is_symlink():
        return "" if entry.is_file() else "no regular files"
    # unlike pathlib, os.path takes a link into a folder without permission for a broken one
    leads_elsewhere = os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113
    return "no regular files" if leads_elsewhere else ""


def why_hidden(name: str) -> str:
    """Why a file or folder is left out by its name; empty if it is not."""
    if name.startswith("."):
        return "hidden"
    return "in folders of the system, such as @eaDir" if name.casefold() in SYSTEM else ""


def wrong_suffix(path: PurePath) -> str:
    """Why a file is not taken for an image; empty if its suffix is that of one."""
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return ""
    if suffix[1:].isdecimal():  # DICOM files may end in their number
        return "with a number as suffix"
    return f"with suffix {suffix}" if suffix else "without a suffix"


def check_name(path: str) -> None:
    """Refuse a name that cannot be written into a manifest.

    Raises:
        ValueError: the name contains a line break, or is not valid UTF-8.
    """
    if "\n" in path:
        raise ValueError(f"the name {path!r} contains a line break; rename it")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the name {path!a} is not valid UTF-8; rename it") from error


def summary(root: Path) -> str:
    """How many files are below a folder, and a hash of their names and of the sizes of the first SIZED ones.

    Sizes of millions of files take minutes on a network. Hidden files and system folders do not count.
    """
    count, digest = 0, hashlib.sha256()
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not why_hidden(name))
        for name in sorted(name for name in files if not why_hidden(name)):
            path = f"{folder}/{name}"
            size = os.lstat(path).st_size if count < SIZED else 0
            digest.update(f"{path.removeprefix(str(root))}\0{size}\n".encode(errors="surrogateescape"))
            count += 1
    return f"{count} files, {digest.hexdigest()}"


def check_class(name: str, place: str) -> None:
    """Refuse a class whose name no picture or page can show.

    Raises:
        ValueError: the name contains a control character other than a tab, or an unassigned one.
    """
    if found := UNPRINTABLE.search(name):
        raise ValueError(f"{place}: the name {name!a} contains the control character {found[0]!a}; rename it")


def held_out(name: str, share: float) -> bool:
    """Whether an image or group belongs to the validation split, which holds about `share` of all.

    Only its own name decides, so that it stays where it is when others are added.
    """
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    return number < share * 2**64
