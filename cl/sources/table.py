"""The images that a table lists: `<raw>/<name>/images.csv` or `images.parquet`, or another one beside them.

With unlisted=unlabelled, it labels some images of the folder `<raw>/<name>`, and all others have no label.

Columns: `path`, relative to the table, or to the folder with unlisted=unlabelled; optionally `label`, `group`
and `split` (train or val). Images of one group (frames of a video, tiles of a slide) are in the same split
and are never negatives of each other. `positive` and `within` name two more: see `Config`.
"""

from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Literal
from unicodedata import normalize

from pydantic import Field

from cl.console.wording import counted
from cl.images.folders import images_below, status_of, wrong_suffix
from cl.images.holdout import held_out, last_of_classes, number_of, share_of_few
from cl.images.image import UNLABELLED, Splits
from cl.images.listing import Keys, Listing
from cl.images.table import ImageRow, Table, alike, column_of, columns_in, on_disk, read, similar
from cl.runtime.base_config import BaseConfig
from cl.sources import OwnImages, place
from cl.sources._shared.values import check_connected, check_values

DEFAULT = ("images.csv", "images.parquet")
LEAST_LABELLED = 100  # images held out, where most have no label: they judge an encoder


class Columns(BaseConfig):
    """What the table calls the columns."""

    path: str
    label: str
    group: str
    split: str


class Config(OwnImages):
    """Your own images, listed in a table."""

    kind: Literal["table"]
    table: str | None = Field(description="the table, relative to the folder; null: one of DEFAULT")
    columns: Columns
    unlisted: Literal["left_out", "unlabelled"] = Field(
        description="whether images of the folder that the table does not list are used without a label"
    )
    positive: str | None = Field(
        description="a column: images of one value are positives of each other, and a group if there is none"
    )
    within: str | None = Field(description="a column: only images of one value are negatives of each other")
    per_value: int = Field(ge=2, description="images of a value of `positive` that are drawn together")
    within_values: int = Field(ge=1, description="values of `within` in a batch, more of small ones")
    holdout: float = Field(
        gt=0,
        lt=1,
        description="share held out for validation, of images or groups without a split; more of few labels",
    )

    def table_path(self, raw: Path) -> Path:
        """The table, which may not exist."""
        present = [name for name in DEFAULT if (self.folder(raw) / name).exists()]
        return place(self.folder(raw), self.table or (present or DEFAULT)[0])

    def watched(self, raw: Path) -> Path:
        return self.folder(raw) if self.unlisted == "unlabelled" else self.table_path(raw).parent

    @property
    def value_columns(self) -> dict[str, str]:
        return {role: name for role in ("positive", "within") if (name := getattr(self, role))}

    @property
    def drawn(self) -> dict[str, int]:
        settings = {"positive": "per_value", "within": "within_values"}
        return {settings[role]: getattr(self, settings[role]) for role in self.value_columns}

    def band_columns(self, raw: Path) -> list[str]:
        """The columns with the paths of one file per band; empty if a file has all bands."""
        names = [name for name in self.channels or () if isinstance(name, str)]
        if self.channels == "all" or not names:
            return []
        table = self.table_path(raw)
        columns = columns_in(table)
        if missing := [name for name in names if name not in columns]:
            if missing == names or self.columns.path in columns or "path" in map(column_of, columns):
                return []
            raise ValueError(
                f"dataset.channels={missing[0]}, but {table} has the columns {', '.join(columns)}; choose one"
            )
        if self.unlisted == "unlabelled":
            raise ValueError(
                "dataset.unlisted=unlabelled finds no images of one file per band; list all images in the "
                "table, and choose dataset.unlisted=left_out"
            )
        return names

    def check_present(self, raw: Path) -> None:
        self.content(raw)

    def content(self, raw: Path) -> Table:
        if not (table := self.table_path(raw)).is_file():
            name = self.table or DEFAULT[0]
            remedy = "write one with the column path, or set CL_RAW to the parent of a relative dataset.name"
            for other in (self.folder(raw).parent / name, Path(name)):
                if other.is_file():
                    remedy = f"give dataset.table={other.resolve()}"
            raise ValueError(
                f"no table {table}; a relative dataset.table starts in the folder of images: {remedy}"
            )
        others = {f"dataset.{role}": name for role, name in self.value_columns.items()}
        columns = self.columns.model_dump()
        if bands := self.band_columns(raw):
            columns["path"] = bands[0]
            others |= {f"dataset.channels={name}": name for name in bands}
        content = read(table, columns, "-S dataset.columns.{}", others)
        rows, grouped = content.rows, "group" in content.columns
        if self.positive and not grouped and any(row.others[0] != row.label for row in rows):
            content = content._replace(rows=[row._replace(group=row.others[0]) for row in rows])
        if self.labels != "none" and "label" not in content.columns:
            raise ValueError(
                f"{content.about}; name the column of labels with -S dataset.columns.label=..., or choose "
                f"dataset.labels=none instead of {self.labels}"
            )
        return content


def splits(config: Config, raw: Path) -> Splits:
    """List the images of the table; classes are sorted by name.

    An image without a split joins the split of its group. If no image of the group has one, a hash of the
    group's name decides; without a group, a hash of the path. Each class keeps for training
    what would be held out last.

    Raises:
        ValueError: the table is missing or damaged, lacks a column, or has two for one; or a row is wrong.
    """
    table = config.table_path(raw)
    everything = config.unlisted == "unlabelled"
    root = config.folder(raw) if everything else table.parent
    content = config.content(raw)
    remarks = [content.about]
    rows, left_out = _rows(content.rows, table, root, config.suffixes)
    if everything:
        rows, left_out = _with_unlisted(rows, left_out, root, table, config.suffixes)
    for number, (role, column) in enumerate(config.value_columns.items()):
        values = [row.others[number] if row.others else None for row in rows]  # none if not in the table
        remarks += check_values(role, column, values)
        if role == "positive":
            remarks += check_connected(column, [row.group for row in rows], values)
        remarks += alike(sorted({value for value in values if value}), f"values of {role}")
    rows = _with_splits_of_groups(rows, table)
    classes = sorted({row.label for row in rows if row.label is not None})
    remarks += similar(classes)
    remarks += alike(sorted({row.group for row in rows if row.group}), "groups")
    labels: dict[str | None, int] = {name: number for number, name in enumerate(classes)}
    keys = Keys()
    bands = config.band_columns(raw)
    listed = {"train": Listing(root, keys, bands), "val": Listing(root, keys, bands)}
    labelled = [row.unit for row in rows if row.label is not None]
    few, share = set(labelled) or {row.unit for row in rows}, config.holdout
    if not any(row.split for row in rows):
        rare = 0 < 2 * len(labelled) < len(rows)
        share = share_of_few(labelled, share, LEAST_LABELLED) if rare else share_of_few(few, share)
    kept = _kept_for_training(rows)
    for row in rows:
        is_val = row.unit not in kept and held_out(row.unit, share if row.unit in few else config.holdout)
        split = row.split or ("val" if is_val else "train")
        roles = {role: cell or "" for role, cell in zip(config.value_columns, row.others, strict=False)}
        files = _band_files(row, bands, table, config.suffixes)
        status = " ".join(status_of(root / file) for file in files) or None
        listed[split].add(
            row.path, status, labels.get(row.label, UNLABELLED), files, group=row.group or "", **roles
        )
    if not all(listed.values()):
        reasons = "".join(f"; left out {counted(n, 'rows')} {reason}" for reason, n in left_out.items())
        number = len({row.group for row in rows if row.group})
        groups = f" in {counted(number, 'groups')}" if number else ""
        raise ValueError(
            f"{table} gives {len(listed['train'])} training and {len(listed['val'])} validation images"
            f"{groups}, expected at least one of each; change dataset.holdout, or add a column split{reasons}"
        )
    return Splits(classes, listed["train"], listed["val"], left_out, remarks)


def _band_files(row: ImageRow, bands: list[str], table: Path, suffixes: set[str]) -> list[str]:
    """The paths of the bands' files, which are the last of the other columns."""
    files = []
    for name, file in zip(bands, row.others[len(row.others) - len(bands) :], strict=True):
        if not file:
            raise ValueError(f"{table}, row {row.number}: {name} is empty; give the file of the band")
        files.append(_below(table.parent, file, f"{table}, row {row.number}", suffixes))
    return files


def _below(root: Path, path: str, place: str, suffixes: set[str]) -> str:
    """The path of a file below the root, as on disk."""
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{place}: {path} leads out of {root}; give a path below it")
    return str(PurePosixPath(on_disk(root, path, suffixes)))


def _rows(
    listed: list[ImageRow], table: Path, root: Path, suffixes: set[str]
) -> tuple[list[ImageRow], Counter[str]]:
    """The rows of images, and the counts of other rows by reason."""
    rows, left_out, seen = [], Counter[str](), dict[str, int]()
    for given in listed:
        place = f"{table}, row {given.number}"
        row = given._replace(path=_below(root, given.path, place, suffixes))
        if row.path in seen:
            raise ValueError(f"{place}: {row.path} is already in row {seen[row.path]}; remove one")
        seen[row.path] = row.number
        if row.split not in (None, "train", "val"):
            raise ValueError(f"{place}: split={row.split} should be train, val or empty")
        if reason := wrong_suffix(PurePosixPath(row.path), suffixes):
            left_out[reason] += 1
        else:
            rows.append(row)
    return rows, left_out


def _with_unlisted(
    rows: list[ImageRow], left_out: Counter[str], root: Path, table: Path, suffixes: set[str]
) -> tuple[list[ImageRow], Counter[str]]:
    """A row for every image in the folder, and the counts of other files than the table by reason.

    Names agree however their accents are encoded: a Mac decomposes them.
    """
    if left_out:
        reason, count = left_out.most_common(1)[0]
        raise ValueError(f"{table} has {counted(count, 'rows')} {reason}; write names of images, as 300.jpg")
    listed = {normalize("NFC", row.path): row for row in rows}
    others = Counter[str]()
    every = []
    for path, _ in images_below(root, "", others, suffixes):
        row = listed.pop(normalize("NFC", path), ImageRow(0, path))
        every.append(row._replace(path=path))
    if listed:
        row = next(iter(listed.values()))
        raise ValueError(
            f"{table}, row {row.number}: no image {row.path} in {root}; correct the path, or remove the row"
        )
    if root.resolve() in table.resolve().parents:
        others[wrong_suffix(table, suffixes)] -= 1
    return every, +others


def _kept_for_training(rows: list[ImageRow]) -> set[str]:
    """A group, or an image without one, of each class: one in training by the table, or the last held out."""
    given = {"train": 2**64, "val": -1}
    return last_of_classes(
        (row.label, given[row.split] if row.split else number_of(row.unit), row.unit)
        for row in rows
        if row.label is not None
    )


def _with_splits_of_groups(rows: list[ImageRow], table: Path) -> list[ImageRow]:
    """The rows, those of a group with the split that at least one of them names."""
    named: dict[str | None, ImageRow] = {}
    for row in rows:
        if row.group and row.split:
            other = named.setdefault(row.group, row)
            if other.split != row.split:
                raise ValueError(
                    f"{table}: group {row.group} is in {other.split} in row {other.number}, but in "
                    f"{row.split} in row {row.number}; a group belongs to one split"
                )
    for number, row in enumerate(rows):
        if row.group in named and not row.split:
            rows[number] = row._replace(split=named[row.group].split)
    return rows
