"""CSV files that spreadsheets can open safely."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FORMULA = ("=", "+", "-", "@")  # the first character of a formula


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write the names of the columns, then the rows, each with a line feed at its end.

    A spreadsheet would run a name that begins like a formula, as `=HYPERLINK(...)`: it gets an apostrophe.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([without_formula(cell) for cell in row] for row in rows)


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
