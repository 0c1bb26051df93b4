"""Tables read, and damage to files."""

import csv
from pathlib import Path


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows, by the names of the columns."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def flip_bit(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
