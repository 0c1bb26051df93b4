"""The images that a table lists: `<raw>/<name>/images.csv` or `images.parquet`, or another one beside them.

Columns: `path`, relative to the table; optionally `label`, `group` and `split` (train or val). An empty cell
is a missing value. Images of one group (frames of a video, tiles of a slide) are in the same split and are
never negatives of each other.
"""

import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field

from cl.sources import UNLABELLED, Source, Splits
from cl.sources._shared.listing import Keys, Listing
from cl.sources._shared.trees import held_out, wrong_suffix

DEFAULT = ("images.csv", "images.parquet")
COLUMNS = ("path", "label", "group", "split")


class Config(Source):
    """Your own images, by the name of their folder; `table`: its name if it is not the default."""

    kind: Literal["table"]
    name: str
    table: str | None
    holdout: float = Field(
        gt=0, lt=1, description="share of images, or of groups, that is not trained on, without a split"
    )

    def table_path(self, raw: Path) -> Path:
        """The table, whether it exists or not."""
        found = [name for name in DEFAULT if (raw / self.name / name).exists()]
        return raw / self.name / (self.table or (found or DEFAULT)[0])

    def check_present(self, raw: Path) -> None:
        if not (table := self.table_path(raw)).is_file():
            raise ValueError(
                f"no table {table}; write one with the column path and, if you like, label, group and split, "
                "or set CL_RAW to the folder that holds its folder"
            )


@dataclass(frozen=True)
class Row:
    """A row of the table and its number; None for an empty cell."""

    number: int
    path: PurePosixPath
    label: str | None
    group: str | None
    split: str | None


def splits(config: Config, raw: Path) -> Splits:
    """List the images of the table; classes are sorted by name.

    An image without a split goes where its group is, or where a hash of the group's name decides; without a
    group, a hash of its path decides.

    Raises:
        ValueError: the table is missing or damaged, lacks a column, or a row of it is wrong.
    """
    config.check_present(raw)
    table = config.table_path(raw)
    rows, left_out = _rows(table)
    places = _splits_of_groups(rows, table)
    classes = sorted({row.label for row in rows if row.label is not None})
    numbers = {name: number for number, name in enumerate(classes)}
    keys = Keys()
    found = {"train": Listing(table.parent, keys), "val": Listing(table.parent, keys)}
    for row in rows:
        keys.add(str(row.path))
        name = row.group or str(row.path)
        chosen = "val" if held_out(name, config.holdout) else "train"
        place = row.split or places.get(row.group or "") or chosen
        label = UNLABELLED if row.label is None else numbers[row.label]
        found[place].add(str(row.path), None, label, row.group or "")
    if not all(found.values()):
        raise ValueError(
            f"{table} gives {len(found['train'])} training and {len(found['val'])} validation images, "
            "expected at least one of each; change dataset.holdout, or name the splits in a column split"
        )
    return Splits(classes, found["train"], found["val"], left_out)


def _rows(table: Path) -> tuple[list[Row], Counter[str]]:
    """The rows that name images, and the number of others by reason."""
    columns = _columns(table)
    first = 2 if table.suffix.lower() == ".csv" else 1  # as an editor counts lines
    rows, left_out, seen = [], Counter[str](), dict[PurePosixPath, int]()
    for number, cells in enumerate(zip(*columns, strict=True), first):
        path = _checked_path(cells[0], f"{table}, row {number}")
        if path in seen:
            raise ValueError(f"{table}, row {number}: {path} is already in row {seen[path]}; remove one")
        seen[path] = number
        row = Row(number, path, *cells[1:])
        if row.split not in (None, "train", "val"):
            raise ValueError(f"{table}, row {number}: split={row.split} should be train, val or empty")
        if reason := wrong_suffix(path):
            left_out[reason] += 1
        else:
            rows.append(row)
    return rows, left_out


def _checked_path(text: str | None, place: str) -> PurePosixPath:
    """A path that stays below the table's folder."""
    if not text:
        raise ValueError(f"{place}: the path is empty")
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{place}: {text} leads out of the table's folder; give a path below it")
    return path


def _splits_of_groups(rows: list[Row], table: Path) -> dict[str, str]:
    """The split of each group that has one in at least one of its rows."""
    named: dict[str, Row] = {}
    for row in rows:
        if row.group and row.split:
            other = named.setdefault(row.group, row)
            if other.split != row.split:
                raise ValueError(
                    f"{table}: group {row.group} is in {other.split} in row {other.number}, but in "
                    f"{row.split} in row {row.number}; a group belongs to one split"
                )
    return {group: str(row.split) for group, row in named.items()}


def _columns(table: Path) -> list[list[str | None]]:
    """The cells of each of COLUMNS; only None for a column that the table does not have."""
    found = _read(table)
    if "path" not in found.column_names:
        raise ValueError(
            f"{table} has the columns {', '.join(found.column_names)}; expected path, and optionally label, "
            "group and split"
        )
    empty: list[str | None] = [None] * len(found)
    return [found[name].to_pylist() if name in found.column_names else empty for name in COLUMNS]


def _read(table: Path) -> Any:
    """The table as pyarrow's, with all of COLUMNS as text."""
    import pyarrow
    from pyarrow import csv, parquet

    text = {name: pyarrow.string() for name in COLUMNS}
    try:
        if table.suffix.lower() == ".parquet":
            found = parquet.read_table(io.BytesIO(table.read_bytes()))
        else:
            options = csv.ConvertOptions(column_types=text, strings_can_be_null=True, null_values=[""])
            found = csv.read_csv(io.BytesIO(table.read_bytes()), convert_options=options)
        for number, name in enumerate(found.column_names):
            if name in text:
                found = found.set_column(number, name, found[name].cast(text[name]))
    except pyarrow.ArrowException as error:
        raise ValueError(f"{table} cannot be read as a table: {' '.join(str(error).split())}") from error
    return found
