"""The classes of images: from a table, or from the folders that contain them."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unicodedata import normalize

import numpy as np

from cl.commands.inputs.held_together import digests, held_together
from cl.commands.inputs.listing import TABLES, is_folder, root_of
from cl.commands.paths import File
from cl.console.wording import counted
from cl.images import table
from cl.images.folders import class_of, classes_in

SEPARATOR, NAMES = ";", ("path", "label", "group")
# Names of folders of training images, and of others.
TRAIN, OTHER = {"train", "training"}, {"val", "valid", "validation", "test", "testing"}
QUOTED = re.compile(r"""'([^']*)'|"([^"]*)\"""")
LabelsAndGroup = tuple[list[str], str]  # the labels and the group of an image


class Labels:
    """The labels and groups in a table, whose paths start from its folder or are names as `cl embed` gives.

    A cell `a;b` or `['a', 'b']`, or two rows of a path, give an image two labels. Names agree however their
    accents are encoded, since a Mac decomposes them, and without a suffix in the table.

    Args:
        columns: what the table calls path, label and group; see `cl.images.table.read`.
        separator: between the labels in a cell.
        others: further columns, by the options that name them.

    Raises:
        ValueError: the table is missing or damaged, has no column of paths or none of labels, or gives an
            image two groups or two cells of a further column.
    """

    def __init__(
        self,
        file: Path,
        columns: Mapping[str, str] | None = None,
        separator: str | None = None,
        others: Mapping[str, str] | None = None,
    ) -> None:
        if file.suffix.lower() not in TABLES or not file.is_file():
            fault = "is not a .csv or .parquet file" if file.exists() else "does not exist"
            raise ValueError(f"{file} {fault}; give a table with columns path and label, saved as CSV UTF-8")
        names = dict(zip(NAMES, NAMES, strict=True)) | dict(columns or {})
        if unknown := [name for name in names if name not in NAMES]:
            raise ValueError(f"a column {unknown[0]} is not read; name those of {', '.join(NAMES)}")
        content = table.read(file, names, "--column {}", others)
        if "label" not in content.columns:
            raise ValueError(
                f"{content.about}; name the column of labels with --column label=..., or all "
                "columns of a class each with --column label=cat,dog"
            )
        self._about, self._columns, self._separator = content.about, columns or {}, separator
        self.file, self.unread = file, content.unread  # names of columns
        self._rows: dict[str, LabelsAndGroup] = {}
        self._others: dict[str, dict[str, str]] = {}
        self._places: dict[str, str] = {}
        self._found: dict[str, Path] = {}
        for row in content.rows:
            key, group = _key(row.path), row.group or ""
            self._places[_key(_absolute(file.parent / row.path))] = key
            cells = self._others.setdefault(key, {})
            for option, cell in zip(others or (), row.others, strict=True):
                if cell and cells.setdefault(option, cell) != cell:
                    raise ValueError(f"{file} has two rows with different {option} for {key}; correct one")
            labels, known = self._rows.setdefault(key, ([], group))
            if known != group:
                raise ValueError(f"{file} has two rows with different groups for {key}; correct one")
            new = _labels_in(row.label or "", separator or SEPARATOR)
            labels += [label for label in dict.fromkeys(new) if label and label not in labels]

    def of(self, names: Sequence[str], root: Path) -> list[LabelsAndGroup]:
        """The labels and the group ("" for none) of the images `root / name`."""
        rows = []
        for name in names:
            key, path = self._row_of(name, root / name), root / name
            other = self._found.setdefault(key, path)
            if other != path and other.with_suffix("") == path.with_suffix(""):
                raise ValueError(f"{self.file}: {key} is {other.name} or {path.name}; write the suffix")
            rows.append(self._rows.get(key, ([], "")))
        return rows

    def with_column(self, name: str) -> "Labels":
        """The table with one more column, as an option of this name. Raises as the constructor."""
        return Labels(self.file, self._columns, self._separator, {name: name})

    def options(self) -> list[str]:
        """The options of a command that reads this table."""
        named = [("--column", f"{name}={column}") for name, column in self._columns.items()]
        separator = [("--separator", self._separator)] if self._separator else []
        return [word for pair in [("--labels", str(self.file)), *named, *separator] for word in pair]

    def cells(self, option: str, names: Sequence[str], files: Sequence[Path]) -> np.ndarray:
        """(N,): what the column of this option says about each image, "" for nothing."""
        keys = [self._row_of(name, file) for name, file in zip(names, files, strict=True)]
        return np.array([self._others.get(key, {}).get(option, "") for key in keys])

    def _row_of(self, name: str, path: Path) -> str:
        """The key of an image's row, "" for none: by its name, or by its path if the name is another's."""
        key, place = _key(name), _key(_absolute(path))
        key = key if key in self._rows else _bare(key)
        own = self._places.get(place) or self._places.get(_bare(place), "")
        if key not in self._rows or key == own:
            return own
        beside = self.file.parent / key
        # Images that are not below the table's folder may be resized copies.
        below = Path(_absolute(path)).is_relative_to(_absolute(self.file.parent))
        other = beside if below and beside.exists() else self._found.get(key, path)
        if not path.exists() or other.samefile(path):
            return key
        if not own:
            raise ValueError(
                f"{self.file}: {key} is the name of {other} and of {path}; write paths that start from the "
                "table's folder"
            )
        return own

    def unused(self) -> list[str]:
        """The paths of the table that no image asked about had."""
        return [key for key in self._rows if key not in self._found]

    def ignored(self) -> list[str]:
        """A sentence about columns that are not read and cells that count as empty, if there are any."""
        return [self._about] if "; " in self._about else []

    def remarks(self) -> list[str]:
        """Sentences about columns that are not read, and rows of other images, if there are any."""
        remarks = self.ignored()
        for option in sorted(set().union(*self._others.values())):
            values = {cells.get(option, "") for cells in self._others.values()}
            remarks += table.alike(sorted(values), f"values of {option}")
        if unused := self.unused():
            rows = counted(len(unused), "rows")
            remarks.append(f"{self.file}: left out {rows}, such as {unused[0]}: no such image")
        return remarks

    def none_of(self, images: str) -> ValueError:
        """The error that no image asked about has a label."""
        remedy = "fill in its column label"
        if unused := self.unused():
            remedy = f"its paths, such as {unused[0]}, must start from its folder, or from that of the images"
        return ValueError(f"none of the {images} has a label in {self.file}; {remedy}")


def opened_table(
    file: File | None,
    columns: Mapping[str, str] | None,
    separator: str | None,
    others: Mapping[str, str] | None = None,
) -> Labels | None:
    """The table, if there is one."""
    if file is None and (columns or separator):
        raise ValueError("--column and --separator describe the table of --labels; give it too")
    if file is None and others:
        option, name = next(iter(others.items()))
        raise ValueError(f"{option} {name} names a column of the table of --labels; give it too")
    return None if file is None else Labels(Path(file).expanduser(), columns, separator, others)


def _labels_in(cell: str, separator: str) -> list[str]:
    """The labels in a cell, which may be a list as Python, NumPy and JSON write it."""
    if cell.startswith("[") and cell.endswith("]"):
        inner = cell[1:-1].strip()
        if inner[:1] in ("'", '"'):
            return [single or double for single, double in QUOTED.findall(inner)]
        return [label.strip() for label in inner.split(",")]
    return [label.strip() for label in cell.split(separator)]


def _bare(key: str) -> str:
    """Without the suffix of the file."""
    return key.rpartition(".")[0]


def _key(path: str) -> str:
    return normalize("NFC", os.path.normpath(path))


def _absolute(path: Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100, it must not follow links


def labels_in(given: Path, say: Callable[[str], object]) -> Labels | None:
    """The labels in a table of images; None for other inputs, and a table without a column of labels."""
    if given.suffix.lower() not in TABLES:
        return None
    content = table.read(given, {"path": "path", "label": "label"})
    if "label" in content.columns:
        return Labels(given)
    if content.unread:
        say(f"{content.about}; without a column label, the folders of the images are their classes")
    return None


def check_classes(folder: Path, remedy: str) -> None:
    """Raises ValueError if folders in a folder are not classes, but splits, which `remedy` is about."""
    names = [*classes_in(folder)]
    of_train, of_others = ([name for name in names if name.casefold() in each] for each in (TRAIN, OTHER))
    if of_train and of_others:
        first, second = folder / of_train[0], folder / of_others[-1]
        raise ValueError(
            f"{folder} has the folders {first.name} and {second.name}, which are splits, not classes; "
            f"{remedy.format(first, second)}"
        )


def classes(given: Path, names: list[str], labels: Labels | None) -> list[tuple[str, str]]:
    """The label and group of each image, "" where it has none, by its name from `root_of([given])`.

    Without a table: in a given folder, the first folder of a name; else the folder that contains the image.
    """
    root = root_of([given])
    if labels:
        rows = labels.of(names, root)
        for name, (own, _) in zip(names, rows, strict=True):
            if len(own) > 1:
                raise ValueError(
                    f"{labels.file} gives {name} the labels {', '.join(own)}; expected one, remove others"
                )
        return [(own[0] if own else "", group) for own, group in rows]
    if not is_folder(given):  # the folder that contains the image
        names = ["/".join(Path(name).parts[-2:]) for name in names]
    return [(class_of(name) or "", "") for name in names]


@dataclass(frozen=True)
class Targets:
    """The labels of N images."""

    names: Sequence[str]
    classes: list[str]  # the C classes, sorted by name
    targets: np.ndarray  # (N, C) bool; a row without a label is all False
    groups: np.ndarray  # (N,) int64, equal for images that are held out together, -1 for an image of no group
    grouped: np.ndarray  # (N,) whether the table gives an image a group
    remarks: list[str]

    @property
    def multilabel(self) -> bool:
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
        names = [self.names[row] for row in rows]
        of_rows = {name: getattr(self, name)[rows] for name in ("targets", "groups", "grouped")}
        return replace(self, names=names, **of_rows)


def read_targets(labels: Labels, names: Sequence[str], root: Path) -> Targets:
    """The labels that a table gives to images with these N paths from `root`."""
    rows = labels.of(names, root)
    classes = sorted({label for own, _ in rows for label in own})
    if not classes:
        raise labels.none_of(f"{counted(len(names), 'images')} in {root}")
    column = {label: number for number, label in enumerate(classes)}
    targets = np.zeros((len(names), len(classes)), bool)
    for row, (own, _) in zip(targets, rows, strict=True):
        row[[column[label] for label in own]] = True
    known = {group for _, group in rows} - {""}
    remarks = [*labels.remarks(), *table.similar(classes), *table.alike(sorted(known), "groups")]
    if several := [name for name, (own, _) in zip(names, rows, strict=True) if len(own) > 1]:
        remarks.append(f"{counted(len(several), 'images')} with several labels, such as {several[0]}")
    groups, labelled = np.full(len(names), -1), np.flatnonzero(targets.any(1)).tolist()
    if known:
        remarks.append(f"images of a group are held out together: {counted(len(known), 'groups')}")
    of_table, files = np.array([group for _, group in rows]), [root / names[row] for row in labelled]
    groups[labelled], copies = held_together(of_table[labelled], digests(files))
    return Targets(names, classes, targets, groups, of_table != "", remarks + copies)
