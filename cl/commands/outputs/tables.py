"""The files that commands write: whether they can be written, and replace no input."""

import tempfile
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from cl.commands.inputs.paths import File, as_paths
from cl.runtime.base_config import one_of


def target_of(
    to: File | None,
    *inputs: object,
    suffixes: tuple[str, ...] = (".csv", ".parquet"),
    option: str = "--to",
) -> Path | None:
    """The file to write, with `~` replaced; writing it creates its folder.

    Args:
        inputs: of the command; those that are paths, or sequences of paths, count.

    Raises:
        ValueError: a result of one of these formats cannot be written there, or would replace an input.
    """
    if to is None:
        return None
    path = Path(to).expanduser()
    check_target(path, *inputs, option=option)
    if path.suffix not in suffixes or path.is_dir():
        raise ValueError(f"{option} {path} must be a file that ends in {one_of([*suffixes])}")
    return path


def check_target(path: Path, *inputs: object, option: str = "--to") -> None:
    """Raises ValueError if a file cannot be written, or would replace one of a command's inputs."""
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
