"""The paths that users give: of inputs, and of files to write, which replace no input."""

import os
import tempfile
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from cl.images.contents import stack_of
from cl.runtime.base_config import one_of

File = str | PathLike[str]
Inputs = File | Sequence[File]
PAGE_OR_TABLE = (".html", ".csv", ".parquet")


def as_paths(given: Inputs) -> list[Path]:
    """One path or several as a list, with `~` replaced; they need not exist."""
    return [Path(path).expanduser() for path in ([given] if isinstance(given, str | PathLike) else given)]


def existing(images: Inputs) -> list[Path]:
    """As `as_paths`; raises ValueError if there are none, or one is missing."""
    given = as_paths(images)
    files = [stack[0] if (stack := stack_of(path)) else path for path in given]
    missing = [path for path, file in zip(given, files, strict=True) if not file.exists()]
    if missing or not given:
        what = f"file or folder {missing[0]}" if missing else "images"
        raise ValueError(f"no {what}; give images, a folder, a list or a table of images")
    return given


def target_of(
    to: File | None,
    *inputs: object,
    suffixes: tuple[str, ...] = (".csv", ".parquet"),
    option: str = "--to",
) -> Path | None:
    """The file to write, with `~` and a link replaced by what they stand for; writing it creates its folder.

    Args:
        inputs: of the command; those that are paths, or sequences of paths, count.

    Raises:
        ValueError: a result of one of these formats cannot be written there, or would replace an input.
    """
    if to is None:
        return None
    path = checked(to, *inputs, option=option)
    if path.suffix not in suffixes or path.is_dir():
        raise ValueError(f"{option} {path} must be a file that ends in {one_of([*suffixes])}")
    return path


def checked(to: File, *inputs: object, option: str = "--to") -> Path:
    """As `target_of`, for a file or folder of any name."""
    path = through_link(Path(to).expanduser())
    given = [each for each in inputs if isinstance(each, str | PathLike | Sequence)]
    paths = [path for each in given for path in as_paths(each)]
    if path.exists() and any(other.exists() and other.samefile(path) for other in paths):
        raise ValueError(f"{option} {path} would overwrite an input of the command; choose another path")
    folder = next(folder for folder in path.parents if folder.exists())
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(
            f"{option} {path}: cannot write in {folder} ({error.strerror}); choose another path"
        ) from error
    return path


def through_link(path: Path) -> Path:
    """The place that a link leads to, which need not exist; the same path if it is not a link."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path
