"""The classes of images: from a table, or from the folders that contain them."""

import os
from pathlib import Path
from unicodedata import normalize

from cl.hub.listing import TABLES, root_of
from cl.sources import table


class Labels:
    """The labels and groups in a table, whose paths start from its folder or are names as `cl embed` gives.

    Names agree however their accents are encoded: a Mac decomposes them.

    Raises:
        ValueError: the table has no column of paths or none of labels, or gives an image two labels.
    """

    def __init__(self, path: Path) -> None:
        columns = table.known_columns(path)
        if "label" not in columns:
            raise ValueError(f"{path} has no column of labels; call one of its columns label")
        self._folder, self._rows, self._found = path.parent, dict[str, tuple[str, str]](), set[str]()
        groups = columns.get("group", [None] * len(columns["path"]))
        for name, label, group in zip(columns["path"], columns["label"], groups, strict=True):
            if name is None or label is None:
                continue
            key = normalize("NFC", str(Path(name)))
            if self._rows.setdefault(key, (label, group or "")) != (label, group or ""):
                raise ValueError(f"{path} has two rows with different labels for {key}; remove one")

    def of(self, name: str, root: Path) -> tuple[str, str] | None:
        """The label and the group ("" for none) of the image `root / name`; None if the table has none."""
        place = os.path.relpath(root / name, self._folder)
        absolute = os.path.abspath(root / name)  # noqa: PTH100, it must not follow links
        for key in (normalize("NFC", path) for path in (name, place, absolute)):
            if key in self._rows:
                self._found.add(key)
                return self._rows[key]
        return None

    def unused(self) -> list[str]:
        """The paths of the table that no image asked about had."""
        return sorted(self._rows.keys() - self._found)


def classes(given: Path, names: list[str], labels: Labels | None = None) -> list[tuple[str, str] | None]:
    """The label and group of each image, and None for an image without a label.

    Args:
        given: a folder, list, table or file, and `names` the names of its images from `root_of([given])`.
        labels: a table of labels. By default, those of a table `given`; in a folder, the first folder of a
            name; else the folder that contains the image.
    """
    root = root_of([given])
    if labels is None and given.suffix.lower() in TABLES and "label" in table.known_columns(given):
        labels = Labels(given)
    if labels:
        return [labels.of(name, root) for name in names]
    parts = [Path(name).parts[:-1] for name in names]
    first = 0 if given.is_dir() else -1
    return [(folders[first], "") if folders else None for folders in parts]
