"""Every number that the four papers print, and which run of ours answers it: a YAML file each, beside this one."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, model_validator
from ruamel.yaml import YAML

from cl.runtime.base_config import BaseConfig

NAMES = ("eqco", "dcl", "jcl", "fast_moco")
IMAGES = {  # training and validation images of the data sets as the papers have them
    "imagenet": (1_281_167, 50_000),
    "imagenet100": (126_689, 5_000),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "stl10": (105_000, 8_000),
}


class Column(BaseConfig):
    """A column of a table: Hydra overrides (separated by blanks) and a metric that its cells have beside those of their row."""

    label: str | int | float
    run: str = ""
    metric: str | None = None


class Row(BaseConfig):
    """A row of a table, a value for each column; null: printed, but not legible in our copy, or printed as absent.

    run: Hydra overrides of the run that answers it, after those of the column; null: nothing here does.
    minus: overrides of the run that is subtracted; the row is a gain, a drop or a change.
    metric: as results name it; null: that of the column.
    minus_metric: that of the run that is subtracted, where it is another.
    baseline: the encoder is this baseline, not the pretrained one.
    quoted: from where the paper has these numbers, if not from own runs; `run` then says what comes nearest, if anything.
    note: what contradicts them, or what they leave open.
    """

    label: str
    values: list[float | None]
    run: str | None = None
    minus: str | None = None
    metric: str | None = None
    minus_metric: str | None = None
    baseline: str | None = None
    quoted: str | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _explained(self) -> "Row":
        if self.run is None and self.quoted is None:
            raise ValueError(f"{self.label}: give a run, or say from where it is quoted")
        if None in self.values and self.note is None:
            raise ValueError(f"{self.label}: a note says why a value is null")
        return self


class Table(BaseConfig):
    """A table of a paper, or the numbers of a part of its text (`text, sec. 1`); gains stand below what they compare.

    turned: the columns here are the printed rows.
    """

    name: str
    caption: str
    turned: bool = False
    columns: list[Column] = Field(min_length=1)
    rows: list[Row] = Field(min_length=1)

    @model_validator(mode="after")
    def _rectangular(self) -> "Table":
        for row in self.rows:
            if len(row.values) != len(self.columns):
                raise ValueError(
                    f"{self.name}, {row.label}: {len(row.values)} values in {len(self.columns)} columns"
                )
        return self


class Figure(BaseConfig):
    """A figure: drawn by an analysis of the run `run`, or a curve over `columns` for each row of `rows`; or a diagram.

    chart: which of the analysis; null: all. varies: the parameters, or groups of them, that runs beside `run` may differ in.
    x: what the columns vary, for the axis.
    """

    name: str
    caption: str
    analysis: str | None = None
    chart: str | None = None
    varies: list[str] = Field([])
    run: str | None = None
    x: str | None = None
    metric: str | None = None
    columns: list[Column] = Field([])
    rows: dict[str, str] = Field({})
    diagram: bool = False

    @model_validator(mode="after")
    def _drawn_one_way(self) -> "Figure":
        analysis = self.analysis and self.run
        sweep = self.x and self.metric and self.columns and self.rows
        if [bool(analysis), bool(sweep), self.diagram].count(True) != 1:
            raise ValueError(
                f"{self.name}: give analysis and run; or x, metric, columns and rows; or diagram"
            )
        return self


class Setting(BaseConfig):
    """A printed hyper-parameter, and where it stands in the parameters of the run of its group.

    key: dotted; null: it is no parameter here, and `why` says what takes its place.
    ours: the value there, if it is not the printed one; `why` says why not.
    """

    name: str
    printed: str | float | int | None
    key: str | None
    ours: str | float | int | bool | list[float] | None = None
    why: str | None = None

    @model_validator(mode="after")
    def _explained(self) -> "Setting":
        if (self.key is None or self.ours is not None) and self.why is None:
            raise ValueError(f"{self.name}: say why it is not as printed")
        return self


class Settings(BaseConfig):
    """The hyper-parameters of one place in the paper."""

    place: str
    run: str
    settings: list[Setting] = Field(min_length=1)


class Paper(BaseConfig):
    """All of a paper."""

    title: str
    tables: list[Table]
    figures: list[Figure]
    settings: list[Settings]


class Cell(NamedTuple):
    """A value of a table with all it takes to answer it."""

    row: Row
    column: Column
    printed: float | None
    run: str | None
    minus: str | None
    metric: str | None
    minus_metric: str | None


@cache
def load(name: str) -> Paper:
    """One of NAMES."""
    values = YAML(typ="safe").load(Path(__file__).with_name("papers") / f"{name}.yaml")
    return Paper.model_validate(values)


def cells(table: Table) -> Iterator[list[Cell]]:
    """The cells of each row."""
    for row in table.rows:
        yield [
            Cell(
                row,
                column,
                printed,
                None if row.run is None else joined(column.run, row.run),
                None if row.minus is None else joined(column.run, row.minus),
                _metric(row, column),
                row.minus_metric or _metric(row, column),
            )
            for column, printed in zip(table.columns, row.values, strict=True)
        ]


def joined(column: str, row: str) -> str:
    """The overrides of a column and a row; the recipe comes first, whichever of the two names it."""
    words = f"{column} {row}".split()
    return " ".join(sorted(words, key=lambda word: not word.startswith("recipe=")))


def _metric(row: Row, column: Column) -> str | None:
    metric = row.metric or column.metric
    return f"{row.baseline}_{metric}" if row.baseline else metric
