"""CSV files."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write the names of the columns, then the rows."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
