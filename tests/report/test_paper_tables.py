"""What the papers print: every run for it exists and measures it, and settings equal the printed ones."""

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from cl import config
from cl.report import paper_tables
from tests.support.experiments import composed


class Measured(NamedTuple):
    """A run, and what it must measure: a metric, or an analysis by its name."""

    run: str
    metric: str | None = None
    analysis: str | None = None
    baseline: str | None = None


def measured(name: str) -> Iterator[Measured]:
    """What runs must measure; for curves and for columns that only vary a number, only the last column."""
    paper = paper_tables.load(name)
    for table in paper.tables:
        swept = not any(column.metric for column in table.columns)
        for cell in itertools.chain.from_iterable(
            row[-1:] if swept else row for row in paper_tables.cells(table)
        ):
            if cell.run is not None:
                yield Measured(cell.run, cell.metric, baseline=cell.row.baseline)
            if cell.minus is not None:
                yield Measured(cell.minus, cell.minus_metric, baseline=cell.row.baseline)
    for figure in paper.figures:
        if figure.run:
            yield Measured(figure.run, analysis=figure.analysis)
        for column, row in itertools.product(figure.columns[-1:], figure.rows.values()):
            yield Measured(f"{row} {column.run}".strip(), figure.metric)


MEASURED = dict.fromkeys(itertools.chain.from_iterable(map(measured, paper_tables.NAMES)))
SETTINGS = {
    f"{name}: {group.place}: {setting.name}": (group.run, setting)
    for name in paper_tables.NAMES
    for group in paper_tables.load(name).settings
    for setting in group.settings
}


@pytest.mark.parametrize("name", paper_tables.NAMES)
def test_a_run_and_a_setting_are_printed_with_one_value(name: str) -> None:
    paper, values = paper_tables.load(name), dict[tuple, float]()
    for cell in (cell for table in paper.tables for row in paper_tables.cells(table) for cell in row):
        if cell.run is not None and cell.printed is not None and cell.minus is None:
            key = cell.run, cell.metric, cell.row.baseline
            assert values.setdefault(key, cell.printed) == cell.printed, (cell.row.label, cell.run)
    for group in paper.settings:
        assert len({setting.name for setting in group.settings}) == len(group.settings), group.place


@functools.cache
def checked(run: str) -> config.Params:
    return config.check(composed(run))


@functools.cache
def complete(run: str) -> dict[str, Any]:
    """With the values that no file sets."""
    return checked(run).model_dump(mode="json")


@pytest.mark.parametrize(
    "expected", MEASURED, ids=lambda expected: f"{expected.run} {expected.analysis or expected.metric}"
)
def test_a_run_composes_and_measures_what_is_printed(expected: Measured) -> None:
    params = checked(expected.run)
    assert params.recipe == expected.run.split()[0].removeprefix("recipe=")
    if not expected.metric:  # a chart of an analysis, or of pretraining's log
        assert expected.analysis in {None, *params.analyses}
        return
    evaluations, transfers = list(params.evaluations), list(params.transfers)
    if expected.baseline:
        evaluations, transfers = params.selected(params.baselines[expected.baseline])
    assert expected.metric in {
        *(f"{entry}_{metric}" for entry in transfers for metric in params.transfers[entry].numbers()),
        *itertools.chain.from_iterable(evaluated(entry, params) for entry in evaluations),
    }


def evaluated(entry: str, params: config.Params) -> Iterator[str]:
    """The names of an evaluation's metrics of the backbone and the embedding."""
    for metric in params.evaluations[entry].numbers():
        yield from (f"{entry}_{metric}", f"{entry}_embedding_{metric}")


@pytest.mark.parametrize("place", [place for place, (_, setting) in SETTINGS.items() if setting.key])
def test_a_setting_equals_the_printed_one_or_says_why_not(place: str) -> None:
    run, setting = SETTINGS[place]
    value: Any = complete(run)
    for part in setting.key.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    assert value == (setting.printed if setting.ours is None else setting.ours)
    assert setting.ours != setting.printed, "ours must differ from printed"
