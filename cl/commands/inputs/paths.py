"""The paths that users give."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from cl.images.contents import stack_of

File = str | PathLike[str]
Inputs = File | Sequence[File]


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
