"""Tables of results, in the format that the suffix of their file names: CSV or Parquet."""

import os
import tempfile
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cl.runtime.base_config import one_of
from cl.runtime.files import finished
from cl.runtime.tables import write_csv

LONGEST = 255 - len(".00000000.partial")  # bytes of a name to which `finished` adds these


def target_of(
    to: "str | PathLike[str] | None",
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
    if (size := len(os.fsencode(path.name))) > LONGEST:
        raise ValueError(f"{option} {path}: the name has {size} bytes; choose one of at most {LONGEST}")
    if files := [folder for folder in path.parents if folder.is_file()]:
        raise ValueError(f"{option} {path}: {files[0]} is a file, not a folder; choose another path")
    if path.exists() and any(given.exists() and given.samefile(path) for given in _paths_among(inputs)):
        raise ValueError(f"{option} {path} would overwrite an input of the command; choose another path")
    folder = next(folder for folder in path.parents if folder.exists())
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(
            f"{option} {path}: cannot write in {folder} ({error.strerror}); choose another path"
        ) from error


def _paths_among(inputs: Iterable[object]) -> Iterable[Path]:
    for given in inputs:
        for each in given if isinstance(given, list | tuple) else [given]:
            if isinstance(each, str | PathLike):
                yield Path(each).expanduser()


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows of values, whole or not at all."""
    with finished(path) as partial:
        if path.suffix == ".csv":
            write_csv(partial, columns, rows)
        else:
            values = list(zip(*rows, strict=True)) or [()] * len(columns)
            pq.write_table(pa.table([list(column) for column in values], names=list(columns)), partial)
