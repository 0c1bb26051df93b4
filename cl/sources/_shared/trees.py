"""The image files in a tree of folders: which they are, what they are called, and which are held out."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

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


def images_below(folder: Path) -> tuple[list[Path], Counter[str]]:
    """The images in a folder and its subfolders, sorted by name, and the number of other entries by reason.

    Raises:
        ValueError: a name is not valid UTF-8, or a folder below `folder` is a link.
    """
    left_out = Counter[str]()
    images = sorted(Path(entry.path) for entry in image_entries(folder, left_out))
    return images, left_out


def image_entries(folder: Path, left_out: Counter[str]) -> Iterator[os.DirEntry[str]]:
    """The images in a folder and its subfolders, in any order; `left_out` counts other entries by reason.

    Raises:
        ValueError: as `images_below`.
    """
    for entry in _entries_below(folder):
        if reason := _why_left_out(entry):
            left_out[reason] += 1
        else:
            yield entry


def _entries_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The files in a folder and its subfolders; a hidden folder counts as one entry."""
    with os.scandir(folder) as entries:
        for entry in entries:
            check_utf8(entry.path)
            visible = not entry.name.startswith(".")
            if visible and entry.is_dir(follow_symlinks=False):
                yield from _entries_below(Path(entry.path))
                continue
            if visible and entry.is_symlink() and os.path.isdir(entry.path):  # noqa: PTH112, as below
                raise ValueError(
                    f"{entry.path} is a link to a folder, which may lead to a loop; "
                    "put the images there instead"
                )
            yield entry


def _why_left_out(entry: os.DirEntry[str]) -> str:
    """The reason; empty for an image. A broken link counts as one, and fails when it is read."""
    path = Path(entry.path)
    if path.name.startswith("."):
        return "hidden"
    if reason := wrong_suffix(path):
        return reason
    if not entry.is_symlink():
        return "" if entry.is_file() else "no regular files"
    # unlike pathlib, os.path takes a link into a folder without permission for a broken one
    leads_elsewhere = os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113
    return "no regular files" if leads_elsewhere else ""


def wrong_suffix(path: PurePath) -> str:
    """Why a file is not taken for an image; empty if its suffix is that of one."""
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return ""
    if suffix[1:].isdecimal():  # DICOM files may end in their number
        return "with a number as suffix"
    return f"with suffix {suffix}" if suffix else "without a suffix"


def check_utf8(path: str) -> None:
    """Refuse a name that cannot be written into a manifest.

    Raises:
        ValueError: the name is not valid UTF-8.
    """
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the name {path!a} is not valid UTF-8; rename it") from error


def keys_of(paths: Sequence[PurePath]) -> list[str]:
    """The keys of images at relative paths: without suffixes, unless several would be equal then.

    WebDataset splits a name at its first dot, so other dots become underscores.
    """
    keys = [str(path.with_suffix("")).replace(".", "_") for path in paths]
    times = Counter(keys)
    return [
        key if times[key] == 1 else f"{key}_{path.suffix[1:]}" for key, path in zip(keys, paths, strict=True)
    ]


def held_out(name: str, share: float) -> bool:
    """Whether an image or group belongs to the validation split, which holds about `share` of all.

    Only its own name decides, so that it stays where it is when others are added.
    """
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    return number < share * 2**64
