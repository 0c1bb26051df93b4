"""CSV files of finished runs, one or more rows each, from which an interrupted measurement continues."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from cl.statistics import Estimate, mean_and_sd


def read(file: Path, columns: Sequence[str], older: int | None = None) -> list[dict[str, str]]:
    """Read the rows; an empty list if the file does not exist.

    Args:
        older: the file may have only this many of the first columns.

    Raises:
        ValueError: the file has other columns, or an incomplete row.
    """
    if not file.exists():
        return []
    with file.open(newline="") as opened:
        titles, *lines = list(csv.reader(opened)) or [list(columns)]
    if titles not in (list(columns), list(columns[:older])):
        raise ValueError(f"{file}: its first line must be {','.join(columns)}, not {','.join(titles)}")
    for number, line in enumerate(lines, 2):
        if len(line) != len(titles):
            raise ValueError(
                f"{file}, line {number}: found {len(line)} of {len(titles)} columns; delete the line"
            )
    return [dict(zip(titles, line, strict=True)) for line in lines]


def append(file: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Add rows, below the titles in an empty or new file."""
    text = file.read_text() if file.exists() else ""
    with file.open("a", newline="") as opened:
        if text and not text.endswith("\n"):
            opened.write("\n")
        csv.writer(opened, lineterminator="\n").writerows([*([] if text else [columns]), *rows])


def mean_and_deviation(values: Sequence[float]) -> str:
    """The mean, with ± the standard deviation if there are several values."""
    return Estimate(*mean_and_sd(values), len(values)).number
