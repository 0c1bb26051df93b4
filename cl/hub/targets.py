"""The labels of images in a table: one or several per image, optionally with groups."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

import numpy as np

from cl.console.wording import counted
from cl.hub.listing import TABLES
from cl.sources import table

SEPARATOR, SHOWN = ";", 3


@dataclass(frozen=True)
class Targets:
    """The labels of N images.

    names: N paths.
    classes: the C classes, sorted by name.
    targets: (N, C) bool; a row without a label is all False.
    groups: (N,) int64, -1 for an image without a group; None if the table has no groups.
    remarks: what the user should know.
    """

    names: Sequence[str]
    classes: list[str]
    targets: np.ndarray
    groups: np.ndarray | None
    remarks: list[str]

    @property
    def several(self) -> bool:
        """Whether an image has several labels."""
        return bool((self.targets.sum(1) > 1).any())

    def labelled(self) -> tuple[np.ndarray, list[str], np.ndarray | None]:
        """Targets, classes and groups of the images with a label."""
        rows = self.targets.any(1)
        return self.targets[rows], self.classes, None if self.groups is None else self.groups[rows]

    def of(self, names: Sequence[str]) -> "Targets":
        """The labels of these images, which are among `self.names`."""
        position = {name: number for number, name in enumerate(self.names)}
        rows = [position[name] for name in names]
        groups = None if self.groups is None else self.groups[rows]
        return Targets(names, self.classes, self.targets[rows], groups, self.remarks)


def read(file: Path, names: Sequence[str], root: Path) -> Targets:
    """The labels that a table of columns `path`, `label` and optionally `group` gives to images.

    A cell `a;b`, or two rows of a path, give an image two labels. Paths start from `root` or from the table's
    folder. Names agree however their accents are encoded: a Mac decomposes them.

    Args:
        names: N paths from `root`.

    Raises:
        ValueError: the table is damaged, has no label, or names images that are missing.
    """
    if file.suffix.lower() not in TABLES or not file.is_file():
        fault = "is not a .csv or .parquet file" if file.exists() else "does not exist"
        raise ValueError(f"{file} {fault}; give a table with the columns path and label, saved as CSV UTF-8")
    columns = table.known_columns(file)
    if "label" not in columns:
        raise ValueError(f"{file} has no column of labels; call one of its columns label")
    rows = [(number, path) for number, path in enumerate(columns["path"]) if path]
    found = _positions([path for _, path in rows], file, names, root)
    labels = [_split(columns["label"][number]) for number, _ in rows]
    classes = sorted({label for row in labels for label in row})
    if not classes:
        raise ValueError(f"{file} has no label in {counted(len(rows), 'rows')}; fill in the column label")
    targets = np.zeros((len(names), len(classes)), bool)
    for position, row in zip(found, labels, strict=True):
        targets[position, [classes.index(label) for label in row]] = True
    groups, remarks = None, table.similar(classes)
    if "group" in columns:
        cells = [columns["group"][number] for number, _ in rows]
        numbers = {group: number for number, group in enumerate(sorted({cell for cell in cells if cell}))}
        groups = np.full(len(names), -1)
        remarks.append(f"images of each of the {counted(len(numbers), 'groups')} are held out together")
        for position, cell in zip(found, cells, strict=True):
            groups[position] = numbers.get(cell or "", -1)
    return Targets(names, classes, targets, groups, remarks)


def _split(cell: str | None) -> list[str]:
    return [label.strip() for label in (cell or "").split(SEPARATOR) if label.strip()]


def _positions(paths: list[str], file: Path, names: Sequence[str], root: Path) -> list[int]:
    """The position of each path in `names`; all start from `root`, or all from the table's folder."""
    known = {normalize("NFC", os.path.normpath(name)): position for position, name in enumerate(names)}
    from_table = [os.path.relpath(file.parent / path, root) for path in paths]
    found = max(
        (
            [known.get(normalize("NFC", os.path.normpath(path))) for path in each]
            for each in (paths, from_table)
        ),
        key=lambda positions: sum(position is not None for position in positions),
    )
    missing = [path for path, position in zip(paths, found, strict=True) if position is None]
    if missing:
        more = ", ..." if len(missing) > SHOWN else ""
        raise ValueError(
            f"{file} names {counted(len(missing), 'images')} not among the {len(names)} found in {root}: "
            f"{', '.join(missing[:SHOWN])}{more}; correct the paths, or remove these rows"
        )
    return [position for position in found if position is not None]
