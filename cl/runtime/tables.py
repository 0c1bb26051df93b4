"""Tables as CSV, which spreadsheets can open safely, and Parquet."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cl.runtime.files import finished

FORMULA = ("=", "+", "-", "@")  # the first character of a formula


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write the names of the columns, then the rows, each with a line feed at its end; whole or not at all.

    A spreadsheet would run a name that begins like a formula, as `=HYPERLINK(...)`: it gets an apostrophe.
    """
    with finished(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([without_formula(cell) for cell in row] for row in rows)


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


def without_formula(cell: Any) -> Any:
    """The cell, with an apostrophe before a text that a spreadsheet would run."""
    if not isinstance(cell, str) or not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def with_formula(cell: str) -> str:
    """The text that `without_formula` was given."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA) else cell
