"""Files of finished runs, one or more rows each, from which a stopped measurement goes on."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev


def read(file: Path) -> list[dict[str, str]]:
    """Read the rows; an empty list if the file does not exist."""
    if not file.exists():
        return []
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def append(file: Path, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Add rows, below the titles in a new file."""
    first = [] if file.exists() else [titles]
    with file.open("a", newline="") as opened:
        csv.writer(opened, lineterminator="\n").writerows([*first, *rows])


def spread(values: Sequence[float]) -> str:
    """The mean with the standard deviation."""
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")
