"""Tables as CSV and Parquet, with names as they are: other programs find images by them."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cl.runtime.files import finished


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write the names of the columns, then the rows; each line ends with a line feed. Whole or not at all."""
    with finished(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns to a .csv or .parquet file, whole or not at all."""
    if path.suffix == ".csv":
        write_csv(path, columns, zip(*columns.values(), strict=True))
        return
    import pyarrow  # late: it takes longer than the rest of this module
    from pyarrow import parquet

    with finished(path) as partial:
        parquet.write_table(pyarrow.table(dict(columns)), partial)


def columns_of(kind: type, rows: Sequence[Any]) -> dict[str, list[Any]]:
    """The fields of a dataclass or named tuple as columns for `write_table`."""
    return {name: [getattr(row, name) for row in rows] for name in kind.__annotations__}
