"""The labels of images in a table: one or several per image, optionally with groups."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cl.console.wording import counted
from cl.hub.labels import Labels
from cl.sources import table

SHOWN = 3


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

    def labelled(self) -> "Targets":
        """Those of the images with a label."""
        return self._at(np.flatnonzero(self.targets.any(1)).tolist())

    def of(self, names: Sequence[str]) -> "Targets":
        """The labels of these images, which are among `self.names`."""
        position = {name: number for number, name in enumerate(self.names)}
        return self._at([position[name] for name in names])

    def _at(self, rows: list[int]) -> "Targets":
        groups = None if self.groups is None else self.groups[rows]
        return replace(
            self, names=[self.names[row] for row in rows], targets=self.targets[rows], groups=groups
        )


def read(file: Path, names: Sequence[str], root: Path) -> Targets:
    """The labels that a table gives to images, see `Labels`.

    Args:
        names: N paths from `root`.

    Raises:
        ValueError: `Labels` refuses the table, or it has no label or names images that are missing.
    """
    labels = Labels(file)
    rows = labels.of(names, root)
    if missing := labels.unused():
        more = ", ..." if len(missing) > SHOWN else ""
        raise ValueError(
            f"{file} names {counted(len(missing), 'images')} not among the {len(names)} found in {root}: "
            f"{', '.join(missing[:SHOWN])}{more}; correct the paths, or remove these rows"
        )
    classes = sorted({label for found, _ in rows for label in found})
    if not classes:
        raise ValueError(f"{file} has no label in its rows; fill in the column label")
    column = {label: number for number, label in enumerate(classes)}
    targets = np.zeros((len(names), len(classes)), bool)
    for row, (found, _) in zip(targets, rows, strict=True):
        row[[column[label] for label in found]] = True
    groups, remarks = None, table.similar(classes)
    if labels.has_groups:
        numbers = {
            group: number for number, group in enumerate(sorted({group for _, group in rows if group}))
        }
        groups = np.array([numbers.get(group, -1) for _, group in rows])
        remarks.append(f"images of each of the {counted(len(numbers), 'groups')} are held out together")
    return Targets(names, classes, targets, groups, remarks)
