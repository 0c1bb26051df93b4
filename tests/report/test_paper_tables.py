"""What the papers print: the tables, results and settings are transcribed, and every run for them exists."""

import copy
import functools
import itertools
import operator
import re
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from ruamel.yaml import YAML

from cl import config
from cl.report import paper_tables
from cl.report.experiments import value_at
from tests.support.experiments import composed
from tests.support.project import ROOT

SOURCE = ROOT.parent / "shared" / "reference" / "paper-results.yaml"
TITLE_IN_SOURCE = {
    "eqco": "EqCo",
    "dcl": "DCL",
    "jcl": "JCL (supplementary)",
    "fast_moco": "Fast-MoCo (supplementary)",
}


class Printed(NamedTuple):
    """One item in the list of everything that the papers print."""

    paper: str
    place: str
    kind: str
    value: object


def printed() -> Iterator[Printed]:
    for name in paper_tables.NAMES:
        paper = paper_tables.load(name)
        for table, row in ((t, row) for t in paper.tables for row in t.rows):
            kind = (
                "text"
                if table.name.startswith("text")
                else "printed gain"
                if row.minus is not None
                else "result"
            )
            yield from (Printed(name, table.name, kind, value) for value in row.values)
        for figure in dict.fromkeys(figure.name.split(", ")[0] for figure in paper.figures):
            yield Printed(name, figure, "figure", None)
        for group in paper.settings:
            yield from (
                Printed(name, group.place, "hyperparameter", setting.printed) for setting in group.settings
            )


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


@functools.cache
def checked(run: str) -> config.Params:
    return config.check(with_numbers(run))


def test_everything_that_the_papers_print_is_transcribed() -> None:
    counts = Counter(row.kind for row in printed())
    assert counts == {"result": 166, "text": 50, "printed gain": 11, "hyperparameter": 138, "figure": 21}
    assert len(SETTINGS) == 138, "two settings printed in one place have the same name"


# What the list lacks: captions, epochs in the heads of tables, and numbers that prose repeats or mentions.
UNLISTED = [
    Printed("eqco", "text, sec. 3", "text", 68.1),
    Printed("eqco", "text, sec. 3", "text", 67.5),
    Printed("eqco", "text, sec. 3", "text", 68.5),
    Printed("eqco", "text, sec. 3", "text", 72.1),
    *(Printed("eqco", "text, sec. 3", "hyperparameter", value) for value in (256, "ResNet-50", 256, 256)),
    Printed("eqco", "text, app. B.5", "hyperparameter", 4),
    Printed("dcl", "text, sec. 1", "text", 66.9),
    *(Printed("dcl", "Table 3, caption", "hyperparameter", value) for value in (256, 200)),
    *(Printed("dcl", "text, sec. 4.2", "hyperparameter", value) for value in (1024, 65536)),
    *(Printed("dcl", "text, sec. 4.4", "hyperparameter", value) for value in (256, 65536, 100, 200)),
    Printed("dcl", "checklist", "hyperparameter", 5),
    *(
        Printed("fast_moco", table, "hyperparameter", value)
        for table in ("Table 1", "Table 2")
        for value in ("{100, 200, 400}", 20)
    ),
]


@pytest.mark.skipif(not SOURCE.is_file(), reason=f"{SOURCE} is missing, the list transcribed from the papers")
@pytest.mark.parametrize("name", paper_tables.NAMES)
def test_every_value_equals_the_printed_one(name: str) -> None:
    listed = [row for row in YAML(typ="safe").load(SOURCE)["rows"] if row["paper"] == TITLE_IN_SOURCE[name]]
    expected = Counter(Printed(name, row["table_or_figure"], row["kind"], row["value"]) for row in listed)
    expected.update(row for row in UNLISTED if row.paper == name)
    assert Counter(row for row in printed() if row.paper == name) == expected


DATASET = {
    "ImageNet-1K": "imagenet",
    "ImageNet-100": "imagenet100",
    "CIFAR10": "cifar10",
    "CIFAR100": "cifar100",
    "STL10": "stl10",
}
LOSS = {
    "NT-Xent": "infonce",
    "InfoNCE": "infonce",
    "InfoNCE+EqCo": "infonce",
    "NNCLR": "infonce",
    "DCL": "dcl",
    "DCLW": "dclw",
}
LOSS |= {"BYOL": "cosine", "SimSiam": "cosine"}


def contradictions(row: dict[str, Any], run: str) -> list[str]:
    """The parameters of a run that contradict what the source states about its number."""
    params = with_numbers(run)
    stated = {
        "dataset.kind": DATASET.get(row.get("dataset")),
        "loss.kind": None
        if "as printed" in row["method"]
        else LOSS.get(row["loss"]),  # the abstract calls DCLW DCL
        "loss.alpha": row.get("alpha"),
        "optim.batch_size": row.get("batch_size") or row.get("N"),
        "optim.epochs": None if row["metric"].startswith("box") else row.get("epochs"),
        "method.queue": row.get("queue") or (row.get("K") if row["method"].startswith("MoCo") else None),
        "method.negatives": row.get("K") if row["method"] == "SiMo" and row.get("K") == 16 else None,
    }
    return [key for key, value in stated.items() if value is not None and value_at(params, key) != value]


def with_numbers(run: str) -> dict[str, Any]:
    """The composed parameters; numbers are set without composing again, which is slow."""
    numbers = [word for word in run.split() if re.fullmatch(r"[a-z_]+([.][a-z_]+)+=[0-9.]+", word)]
    params = copy.deepcopy(composed(" ".join(word for word in run.split() if word not in numbers)))
    for key, value in (word.split("=") for word in numbers):
        *groups, name = key.split(".")
        place = functools.reduce(operator.getitem, groups, params)
        assert name in place, f"{key} is not a parameter of {run}"
        place[name] = YAML(typ="safe").load(value)
    return params


@pytest.mark.skipif(not SOURCE.is_file(), reason=f"{SOURCE} is missing, the list transcribed from the papers")
@pytest.mark.parametrize("name", paper_tables.NAMES)
def test_every_number_belongs_to_the_run_that_the_source_describes(name: str) -> None:
    """Data, loss, batch, epochs, queue and alpha agree as far as stated: swapped rows would be found."""
    cells = [
        (table.name, cell)
        for table in paper_tables.load(name).tables
        for row in paper_tables.cells(table)
        for cell in row
    ]
    free = [(place, cell) for place, cell in cells if cell.minus is None]
    for row in YAML(typ="safe").load(SOURCE)["rows"]:
        if (
            row["paper"] != TITLE_IN_SOURCE[name]
            or row["kind"] not in ("result", "text")
            or "gain" in row["metric"]
        ):
            continue
        alike = [
            (place, cell)
            for place, cell in free
            if (place, cell.printed) == (row["table_or_figure"], row["value"])
        ]
        if not alike and any(word in row["metric"] for word in ("drop", "change")):
            continue  # a difference
        fitting = [
            (place, cell) for place, cell in alike if cell.row.quoted or not contradictions(row, cell.run)
        ]
        assert fitting, (row, [contradictions(row, cell.run) for _, cell in alike])
        free.remove(fitting[0])
    rest = [Printed(name, place, "text", cell.printed) for place, cell in free]
    assert rest == [row for row in UNLISTED if row.paper == name and row.kind == "text"]


@pytest.mark.parametrize(
    "expected", MEASURED, ids=lambda expected: f"{expected.run} {expected.analysis or expected.metric}"
)
def test_a_run_composes_and_measures_what_is_printed(expected: Measured) -> None:
    params = checked(expected.run)
    assert params.recipe == expected.run.split()[0].removeprefix("recipe=")
    if expected.analysis:
        assert expected.analysis in params.analyses
        return
    metric, known = expected.metric or "", [*params.evaluations, *params.transfers]
    if expected.baseline:
        known = list(itertools.chain(*params.selected(params.baselines[expected.baseline])))
        metric = metric.removeprefix(f"{expected.baseline}_")
    entry = max((entry for entry in known if metric.startswith(f"{entry}_")), key=len, default=None)
    assert entry, f"{metric} belongs to none of {known}"
    if entry in params.transfers:
        explained = set(params.transfers[entry].metrics)
    else:
        few = SimpleNamespace(labelled=range(4))
        explained = set(params.evaluations[entry].numbers(few, few))
    assert metric.removeprefix(f"{entry}_").removeprefix("embedding_") in explained


@pytest.mark.parametrize("place", [place for place, (_, setting) in SETTINGS.items() if setting.key])
def test_a_setting_equals_the_printed_one_or_says_why_not(place: str) -> None:
    run, setting = SETTINGS[place]
    checked(run)
    value: Any = composed(run)
    for part in setting.key.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    assert value == (setting.printed if setting.ours is None else setting.ours)
    assert setting.ours != setting.printed, "ours must differ from printed"


def test_five_printed_gains_contradict_the_numbers_they_compare() -> None:
    """Gains between two numbers that the same paper prints: place, printed gain, actual difference."""
    found = [(name, *gain) for name in paper_tables.NAMES for gain in gains(name)]
    assert len(found) == 27
    assert {gain for gain in found if gain[-1] != gain[-2]} == {
        ("eqco", "text, sec. 1", 6.1, 5.9),
        ("dcl", "Table 3", 3.1, 2.4),
        ("dcl", "Table 3", 3.7, 3.0),
        ("dcl", "text, sec. 4.2", 3.1, 2.4),
        ("dcl", "text, sec. 4.2", 3.7, 3.0),
    }


def gains(name: str) -> Iterator[tuple[str, float, float]]:
    """Place, printed gain and the difference of the two runs' numbers, if both are printed too."""
    cells = [
        (table.name, cell)
        for table in paper_tables.load(name).tables
        for cell in itertools.chain.from_iterable(paper_tables.cells(table))
        if cell.run is not None and cell.printed is not None
    ]
    values: dict[tuple, float] = {}
    for place, cell in cells:
        if cell.minus is None:
            value = values.setdefault((cell.run, cell.metric), cell.printed)
            assert value == cell.printed, f"{place}: {cell.run} has two numbers"
    for place, cell in cells:
        value = values.get((cell.run, cell.metric))
        subtracted = values.get((cell.minus, cell.minus_metric))
        if cell.minus is not None and value is not None and subtracted is not None:
            yield place, cell.printed, round(value - subtracted, 1)
