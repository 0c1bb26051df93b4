"""The table of labels and the parameters by which a recipe trains on the images of `cl advise`."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cl.commands.inputs.labels import NAMES, Labels
from cl.commands.inputs.sample import Sample
from cl.images.table import column_of

HOLDOUT = 0.3  # of the labelled images judges a run, unless the folder has val/
TABLE = "for_training.csv"
Cells = dict[str, str]  # what a column says about each image of a folder, "" for nothing


def columns_of(table: Labels | None, images: Sample) -> Iterator[tuple[str, Cells]]:
    """The columns besides path, label and split that can be read."""
    names, files = [*images.listed], [images.folder / name for name in images.listed]
    for column in table.unread if table else ():
        with suppress(ValueError):  # captions with line breaks, or two columns of a name
            assert table
            cells = table.with_column(column).cells(column, names, files)
            if column_of(column) != "split":
                yield column, dict(zip(names, cells.tolist(), strict=True))
    if table and table.has_groups:
        yield "group", {name: group for name, (_, group) in images.listed.items()}


def labels_of(images: Sample, columns: Mapping[str, Cells]) -> dict[str, list[str]]:
    """The columns of a table of the images that have a label or group."""
    rows = [(name, *known) for name, known in images.listed.items() if any(known)]
    content = {column: [*cells] for column, cells in zip(NAMES, zip(*rows, strict=True), strict=True)}
    others = {name: [cells[path] for path, *_ in rows] for name, cells in columns.items()}
    return content | {name: cells for name, cells in others.items() if name not in content}


@dataclass(frozen=True)
class Named:
    """How commands name the images and their labels."""

    folder: str  # for a shell
    again: str  # the command that asked for advice
    before: list[str]  # commands that a recipe needs
    data: list[str]  # the parameters of a recipe


def for_training(
    images: Sample, table: Labels | None, written: Path | None, *, has_labels: bool, ungrouped: bool
) -> Named:
    """A recipe reads a table that `cl advise` writes: paths in the user's may start elsewhere.

    Args:
        table, written: the user's, and that of this command.
        has_labels: whether labels can judge.
    """
    options = [*(table.options() if table else []), *["--ungrouped"] * ungrouped]
    again, before = shlex.join(["cl", "advise", str(images.folder), *options]), list[str]()
    data = [f"dataset.name={images.folder.absolute()}", *["ungrouped=true"] * ungrouped]
    train, val = (
        {label for name, (label, _) in images.listed.items() if name.startswith(split)}
        for split in ("train/", "val/")
    )
    if has_labels and images.has_splits and train == val:
        data.append("dataset=folder")
    elif has_labels:
        before = [f"{again} --minutes 0 --to {TABLE}"] * (written is None)
        path = (written or Path(TABLE)).absolute()
        data += ["dataset=partly_labelled", f"dataset.table={path}", f"dataset.holdout={HOLDOUT}"]
    return Named(shlex.quote(str(images.folder)), again, before, data)
