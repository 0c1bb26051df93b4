"""Tables of results, in the format that the suffix of their file names: CSV or Parquet."""

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cl.runtime.base_config import one_of
from cl.runtime.files import finished
from cl.runtime.tables import write_csv


def target_of(
    to: "str | PathLike[str] | None", suffixes: tuple[str, ...] = (".csv", ".parquet"), option: str = "--to"
) -> Path | None:
    """The file to write, with `~` replaced; writing it creates its folder.

    Raises:
        ValueError: a result of one of these formats cannot be written there.
    """
    if to is None:
        return None
    path = Path(to).expanduser()
    if path.suffix not in suffixes or path.is_dir():
        raise ValueError(f"{option} {path} must be a file that ends in {one_of([*suffixes])}")
    if files := [folder for folder in path.parents if folder.is_file()]:
        raise ValueError(f"{option} {path}: {files[0]} is a file, not a folder; choose another path")
    return path


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows of values, whole or not at all."""
    with finished(path) as partial:
        if path.suffix == ".csv":
            write_csv(partial, columns, rows)
        else:
            values = list(zip(*rows, strict=True)) or [()] * len(columns)
            pq.write_table(pa.table([list(column) for column in values], names=list(columns)), partial)
