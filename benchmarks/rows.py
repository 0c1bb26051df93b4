"""CSV files of finished runs, one or more rows each, from which an interrupted measurement continues."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from cl.statistics import Estimate, mean_and_sd


def read(file: Path, columns: Sequence[str], older: Sequence[int] = ()) -> list[dict[str, str]]:
    """Read the rows; an empty list if the file does not exist.

    Args:
        older: the numbers of columns of older files, which lack the last ones.

    Raises:
        ValueError: the file has other columns, or an incomplete row.
    """
    if not file.exists():
        return []
    with file.open(newline="") as opened:
        titles, *lines = list(csv.reader(opened)) or [list(columns)]
    if titles not in [list(columns[:number]) for number in (*older, len(columns))]:
        raise ValueError(f"{file}: its first line must be {','.join(columns)}, not {','.join(titles)}")
    for number, line in enumerate(lines, 2):
        if len(line) != len(titles):
            raise ValueError(
                f"{file}, line {number}: found {len(line)} of {len(titles)} columns; delete the line"
            )
    return [dict(zip(titles, line, strict=True)) for line in lines]


def append(file: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Add rows, below the titles in an empty or new file; rows without the last columns get empty cells."""
    text = file.read_text() if file.exists() else ""
    titles = text.partition("\n")[0].split(",")
    if text and len(titles) < len(columns) and titles == list(columns[: len(titles)]):
        padded = [line + "," * (len(columns) - len(titles)) for line in text.splitlines()[1:]]
        text = "\n".join([",".join(columns), *padded, ""])
        file.write_text(text)
    with file.open("a", newline="") as opened:
        if text and not text.endswith("\n"):
            opened.write("\n")
        csv.writer(opened, lineterminator="\n").writerows([*([] if text else [columns]), *rows])


def mean_and_deviation(values: Sequence[float]) -> str:
    """The mean, with ± the standard deviation if there are several values."""
    return Estimate(*mean_and_sd(values), len(values)).number
