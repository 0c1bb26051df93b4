"""The papers' tables, figures and settings, with the runs that reproduce them: a YAML file per paper."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field
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


class PaperRow(BaseConfig):
    """A row of a table with one value per column; null: illegible in our copy, or printed as absent.

    run: Hydra overrides of the run that reproduces it, added to the column's; null: none here does.
    runs: overrides for each column, instead of `run` and the columns'; null where the paper has no number.
    minus: overrides of the run to subtract, if the row is a difference.
    metric: its name in our results, such as knn_embedding_top1; null: the column's.
    minus_metric: the metric of the run to subtract, if different.
    baseline: the baseline that provides the encoder, instead of pretraining.
    quoted: the source of numbers that the paper quotes; `run` is then the closest run here, if any.
    note: contradictions and open questions of the numbers.
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


class PaperTable(BaseConfig):
    """A table, or numbers from the text; gains follow the rows they compare. turned: printed transposed."""

    name: str
    caption: str
    turned: bool = False
    columns: list[Column] = Field(min_length=1)
    rows: list[PaperRow] = Field(min_length=1)


class Figure(BaseConfig):
    """A figure: charts of an `analysis` of `run`, curves over `columns` for each of `rows`, or a diagram.

    log: what a chart of the log of `run` shows instead: kNN accuracy, or the bound on mutual information.
    chart: one chart of the analysis; null: all.
    varies: parameters, or their groups, in which the figure's runs may differ from `run`.
    x: the axis title: what the columns vary.
    """

    name: str
    caption: str
    analysis: str | None = None
    log: Literal["knn", "information"] | None = None
    chart: str | None = None
    varies: list[str] = Field([])
    run: str | None = None
    x: str | None = None
    metric: str | None = None
    columns: list[Column] = Field([])
    rows: dict[str, str] = Field({})
    diagram: bool = False


class Setting(BaseConfig):
    """A printed hyper-parameter, and the matching parameter of its group's run.

    key: dotted path; null: no parameter matches, and `why` says what replaces it.
    ours: our value if it differs from the printed one; `why` gives the reason.
    """

    name: str
    printed: str | float | int | None
    key: str | None
    ours: str | float | int | bool | list[float] | None = None
    why: str | None = None


class Settings(BaseConfig):
    """The hyper-parameters printed in one place of the paper, and the run that has them."""

    place: str
    run: str
    settings: list[Setting] = Field(min_length=1)


class Paper(BaseConfig):
    """One paper's tables, figures and hyper-parameters."""

    title: str
    tables: list[PaperTable]
    figures: list[Figure]
    settings: list[Settings]


class Cell(NamedTuple):
    """A value of a table, and the run and metric that reproduce it."""

    row: PaperRow
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


def cells(table: PaperTable) -> Iterator[list[Cell]]:
    """The cells of each row."""
    for row in table.rows:
        runs = row.runs or [_joined(column.run, row.run) for column in table.columns]
        found = []
        for column, printed, run in zip(table.columns, row.values, runs, strict=True):
            minus, metric = _joined(column.run, row.minus), row.metric or column.metric
            found.append(Cell(row, printed, run, minus, metric, row.minus_metric or metric))
        yield found


def _joined(column: str, row: str | None) -> str | None:
    return None if row is None else join_overrides(column, row)


def join_overrides(column: str, row: str) -> str:
    """The overrides of a column and a row, the recipe first."""
    words = f"{column} {row}".split()
    return " ".join(sorted(words, key=lambda word: not word.startswith("recipe=")))
