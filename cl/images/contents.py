"""The bytes of an image: of a file, of an OME-Zarr folder, or of an image in a NumPy file of several.

Image 7 of the array x.npy (N, H, W, C), or (N, C, H, W), is called x[7].npy.
"""

import io
import math
import re
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from errno import ENOENT
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cl.runtime.files import reason

ZARR, ARRAY = ".zarr", ".npy"  # suffixes
STACKED = 4  # axes of an array of several images
IN_STACK = re.compile(r"(.*)\[(\d+)\](\.npy)", re.IGNORECASE | re.DOTALL)


def content_of(path: Path) -> bytes:
    """An encoded image; raises OSError if it does not exist."""
    if path.suffix.lower() == ZARR and path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return zipped((file.relative_to(path).as_posix(), file) for file in files)
    if (stack := stack_of(path)) is None:
        return path.read_bytes()
    file, number = stack
    content = io.BytesIO()
    try:
        with file.open("rb") as opened:
            if len(header_of(opened)[0]) != STACKED:
                raise ValueError(f"{file} has one image")
        np.save(content, np.load(file, mmap_mode="r")[number])
    except (ValueError, IndexError) as error:
        raise FileNotFoundError(ENOENT, f"{file} has no image {number}", str(path)) from error
    return content.getvalue()


def zipped(files: Iterable[tuple[str, Path]]) -> bytes:
    """A ZIP file of files, by their names in it."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, path in files:
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes())
    return content.getvalue()


def stack_of(path: Path) -> tuple[Path, int] | None:
    """The NumPy file of several images, and the image's number in it; None for any other path."""
    match = IN_STACK.fullmatch(str(path))
    return (Path(match[1] + match[3]), int(match[2])) if match and not path.exists() else None


def images_of(path: str) -> list[str]:
    """The paths of the images in a file: its own, or those of an array of four axes."""
    if path.lower().endswith(ARRAY):
        with suppress(OSError, ValueError), Path(path).open("rb") as file:
            shape, _, dtype = header_of(file)
            is_whole = file.tell() + math.prod(shape) * dtype.itemsize == Path(path).stat().st_size
            if len(shape) == STACKED and is_whole:
                return [f"{path[:-4]}[{number}]{path[-4:]}" for number in range(shape[0])]
    return [path]


def header_of(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """The shape of a NumPy file, whether it is in Fortran's order, and its type; ValueError if damaged."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        return read(file)
    except Exception as error:  # from the tokenizer of Python too
        raise ValueError(f"damaged ({reason(error)})") from error
