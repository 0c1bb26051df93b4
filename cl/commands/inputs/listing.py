"""The images that files, folders, lists and tables name; their names in a file, read a range at a time.

A list is a .txt file with a path on each line; a table is a .csv or .parquet file with a column of paths.
Paths in them start from their folder.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np

from cl.data.transform import Transform
from cl.images import table
from cl.images.band_files import SUFFIXES as BAND_SUFFIXES
from cl.images.contents import ARRAY, images_of
from cl.images.folders import (
    SUFFIXES,
    check_name,
    images_below,
    is_image_folder,
    status_of,
    wrong_suffix,
)

LIST, TABLES = ".txt", (".csv", ".parquet")
NAMES, OFFSETS = "names.txt", "offsets"  # a name per line; the start of each line, and the end of the last
OFFSET = np.dtype("<i8")


def suffixes_for(transform: Transform) -> set[str]:
    """Of the files that count as images for an encoder with this transform."""
    return SUFFIXES | BAND_SUFFIXES if transform.bands else SUFFIXES


def root_of(inputs: Sequence[Path]) -> Path:
    """The folder that names start from: of a single folder, list or table; else the current one."""
    (only, *others) = inputs
    if others or not (is_folder(only) or _is_index(only)):
        return Path()
    return only if is_folder(only) else only.parent


def images_in(
    inputs: Sequence[Path], left_out: Counter[str], suffixes: set[str] = SUFFIXES
) -> Iterator[tuple[str, str]]:
    """The images that files, folders, lists and tables name, in this order; those of a folder are sorted.

    An image that is named twice counts once: otherwise it could train a classifier that it also tests.

    Args:
        left_out: counts other files by reason.

    Yields:
        The path from `root_of(inputs)`; the size and version.

    Raises:
        ValueError: a name contains a line break or is not valid UTF-8, a folder below another is a link, a
            table is damaged, or a path has backslashes.
    """
    named = _named(inputs, left_out, suffixes)
    if len(inputs) == 1 and is_folder(inputs[0]):
        yield from named
        return
    seen = set[int]()  # hashes take less memory than names
    for name, status in named:
        if hash(name) in seen:
            left_out["already named"] += 1
        else:
            seen.add(hash(name))
            yield name, status


def _named(inputs: Sequence[Path], left_out: Counter[str], suffixes: set[str]) -> Iterator[tuple[str, str]]:
    """As `images_in`, with repetitions."""
    root = root_of(inputs)
    for given in inputs:
        if is_folder(given):
            prefix = "" if given == root else f"{given}/"
            for name, status in images_below(given.resolve(), "", left_out, suffixes):
                yield prefix + name, status
        else:
            folder = Path() if given.parent == root else given.parent
            for path in _paths(given) if _is_index(given) else [given.name]:
                name = table.on_disk(root, str(folder / path), suffixes)
                check_name(name)
                if reason := wrong_suffix(Path(name), suffixes):
                    left_out[reason] += 1
                elif (status := status_of(root / name)) == "missing" and "\\" in path:
                    raise table.with_backslashes(path, given)
                else:
                    whole = str(root / name)
                    images = images_of(whole) if ARRAY in suffixes else [whole]
                    stacked = [str(Path(name).with_name(Path(image).name)) for image in images]
                    yield from ((each, status) for each in ([name] if images == [whole] else stacked))


def is_folder(path: Path) -> bool:
    """Whether it is a folder of images, and not an image."""
    return path.is_dir() and not is_image_folder(path, BAND_SUFFIXES)


def _is_index(path: Path) -> bool:
    return path.suffix.lower() in (LIST, *TABLES)


def with_one_root(inputs: Sequence[Path]) -> Iterator[list[Path]]:
    """Inputs whose images' names start from one folder: each folder, list or table, and images in a row."""
    for is_image, some in groupby(inputs, lambda path: not (is_folder(path) or _is_index(path))):
        given = [*some]
        yield from [given] if is_image else [[path] for path in given]


def _paths(index: Path) -> Iterator[str]:
    """The paths in a list or table."""
    if index.suffix.lower() in TABLES:
        yield from (row.path for row in table.read(index, {"path": "path"}).rows)
        return
    with index.open(encoding="utf-8-sig") as lines:
        try:
            yield from filter(None, (line.strip() for line in lines))
        except UnicodeDecodeError as error:
            raise ValueError(f"{index} is not UTF-8 text; write the path of an image on each line") from error


@dataclass(frozen=True)
class ImageNames:
    """The names of the images in `inputs`, from `root_of(inputs)`; `write` stores them in `folder`."""

    inputs: Sequence[Path]
    folder: Path
    suffixes: set[str] = field(default_factory=lambda: SUFFIXES)

    def __len__(self) -> int:
        return (self.folder / OFFSETS).stat().st_size // OFFSET.itemsize - 1

    def names(self, start: int, stop: int) -> list[str]:
        """The names of images start to stop - 1."""
        place = start * OFFSET.itemsize
        offsets = np.fromfile(self.folder / OFFSETS, OFFSET, stop - start + 1, offset=place)
        with (self.folder / NAMES).open("rb") as file:
            file.seek(int(offsets[0]))
            return file.read(int(offsets[-1] - offsets[0])).decode().split("\n")[:-1]

    def write(self) -> tuple[str, Counter[str]]:
        """List the images; a hash of names, sizes and times of change, and the other files by reason."""
        sha, left_out, end = hashlib.sha256(), Counter[str](), 0
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / NAMES).open("wb") as names, (self.folder / OFFSETS).open("wb") as offsets:
            for name, status in images_in(self.inputs, left_out, self.suffixes):
                sha.update(f"{name}\0{status}\n".encode())
                offsets.write(end.to_bytes(OFFSET.itemsize, "little"))
                end += names.write(name.encode() + b"\n")
            offsets.write(end.to_bytes(OFFSET.itemsize, "little"))
        return sha.hexdigest(), left_out
