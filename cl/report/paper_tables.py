"""The papers' tables, results and settings, and the run that reproduces each: a YAML file per paper."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, model_validator
from ruamel.yaml import YAML

from cl.runtime.base_config import BaseConfig

NAMES = ("eqco", "dcl", "jcl", "fast_moco")
IMAGES = {  # numbers of training and validation images in the papers' data sets
    "imagenet": (1_281_167, 50_000),
    "imagenet100": (126_689, 5_000),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "stl10": (105_000, 8_000),
}


class Column(BaseConfig):
    """A column of a table: Hydra overrides (separated by spaces) and a metric that apply to all its cells."""

    label: str | int | float
    run: str = ""
    metric: str | None = None


class Row(BaseConfig):
    """A row of a table with one value per column; null: illegible in our copy, or printed as absent.

    run: Hydra overrides of the run that reproduces it, added to the column's; null: no run here does.
    runs: overrides for each column, instead of `run` and the columns'; null where the paper has no number.
    minus: overrides of the run to subtract, if the row is a gain, a drop or a change.
    metric: its name in our results, such as knn_embedding_top1; null: the column's.
    minus_metric: the metric of the run to subtract, if it differs.
    baseline: the baseline that provides the encoder, instead of pretraining.
    quoted: the source of numbers that the paper quotes; `run` is then the closest run here, if there is one.
    note: what contradicts the numbers, or what they leave open.
    """

    label: str
    values: list[float | None]
    run: str | None = None
    runs: list[str | None] | None = None
    minus: str | None = None
    metric: str | None = None
    minus_metric: str | None = None
    baseline: str | None = None
    quoted: str | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _explained(self) -> "Row":
        if self.run is None and self.runs is None and self.quoted is None:
            raise ValueError(f"{self.label}: neither run nor quoted is given; give at least one of them")
        if self.runs is not None and (self.run is not None or len(self.runs) != len(self.values)):
            raise ValueError(f"{self.label}: runs must have one entry per value, and stand alone without run")
        if None in self.values and self.note is None:
            raise ValueError(f"{self.label}: a value is null, but there is no note; add one that says why")
        return self


class Table(BaseConfig):
    """A table of a paper, or numbers from its text (`text, sec. 1`); gains come below what they compare.

    turned: whether the columns here are the rows of the printed table.
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
                found = f"{self.name}, {row.label}: found {len(row.values)} values"
                raise ValueError(f"{found}; give {len(self.columns)}, one per column")
        return self


class Figure(BaseConfig):
    """A figure: drawn by `analysis` of `run`, or a curve over `columns` for each of `rows`, or a diagram.

    chart: one chart of the analysis; null: all of them.
    varies: parameters, or groups of them, in which other runs shown in the figure may differ from `run`.
    x: what the columns vary, the title of the axis.
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
        analysed = bool(self.analysis and self.run)
        swept = bool(self.x and self.metric and self.columns and self.rows)
        if [analysed, swept, self.diagram].count(True) != 1:
            choices = "analysis and run; or x, metric, columns and rows; or diagram"
            raise ValueError(f"{self.name} must be drawn in exactly one way; give {choices}")
        return self


class Setting(BaseConfig):
    """A printed hyper-parameter, and the matching parameter of the run of its group.

    key: dotted path; null: there is no such parameter, and `why` says what replaces it.
    ours: our value if it differs from the printed one, for the reason in `why`.
    """

    name: str
    printed: str | float | int | None
    key: str | None
    ours: str | float | int | bool | list[float] | None = None
    why: str | None = None

    @model_validator(mode="after")
    def _explained(self) -> "Setting":
        if (self.key is None or self.ours is not None) and self.why is None:
            raise ValueError(f"{self.name} differs from the paper; say why")
        return self


class Settings(BaseConfig):
    """The hyper-parameters printed in one place of the paper, and the run they apply to."""

    place: str
    run: str
    settings: list[Setting] = Field(min_length=1)


class Paper(BaseConfig):
    """One paper's tables, figures and hyper-parameters, and the results in its text."""

    title: str
    tables: list[Table]
    figures: list[Figure]
    settings: list[Settings]


class Cell(NamedTuple):
    """A value of a table, and the run and metric that reproduce it."""

    row: Row
    column: Column
    printed: float | None
    run: str | None
    minus: str | None
    metric: str | None
    minus_metric: str | None


@cache
def load(name: str) -> Paper:
    """Read the paper called `name`, one of NAMES."""
    values = YAML(typ="safe").load(Path(__file__).with_name("papers") / f"{name}.yaml")
    return Paper.model_validate(values)


def cells(table: Table) -> Iterator[list[Cell]]:
    """The cells of each row."""
    for row in table.rows:
        runs = row.runs or [_run(row, column) for column in table.columns]
        columns = zip(table.columns, row.values, runs, strict=True)
        yield [_cell(row, column, printed, run) for column, printed, run in columns]


def _run(row: Row, column: Column) -> str | None:
    return None if row.run is None else join_overrides(column.run, row.run)


def _cell(row: Row, column: Column, printed: float | None, run: str | None) -> Cell:
    metric = row.metric or column.metric
    return Cell(
        row=row,
        column=column,
        printed=printed,
        run=run,
        minus=None if row.minus is None else join_overrides(column.run, row.minus),
        metric=metric,
        minus_metric=row.minus_metric or metric,
    )


def join_overrides(column: str, row: str) -> str:
    """The overrides of a column and a row; the recipe comes first, whichever of the two names it."""
    words = f"{column} {row}".split()
    return " ".join(sorted(words, key=lambda word: not word.startswith("recipe=")))
