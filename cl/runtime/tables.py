"""CSV files that spreadsheets can open safely."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_csv(
    path: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]], lineterminator: str = "\r\n"
) -> None:
    """Write the names of the columns, then the rows.

    A spreadsheet would run a name that begins like a formula, as `=HYPERLINK(...)`: it gets an apostrophe.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator=lineterminator)
        writer.writerow(columns)
        writer.writerows([_without_formula(cell) for cell in row] for row in rows)


def _without_formula(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
