"""What the papers print: all of it has its place, and every run that answers it exists."""

import copy
import functools
import itertools
import operator
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ruamel.yaml import YAML

from cl import config
from cl.report import paper_tables as papers
from cl.report.experiments import at
from cl.report.page import TITLES
from tests.support.project import ROOT, compose

SOURCE = ROOT.parent / "shared" / "reference" / "paper-results.yaml"
TITLE_IN_SOURCE = {
    "eqco": "EqCo",
    "dcl": "DCL",
    "jcl": "JCL (supplementary)",
    "fast_moco": "Fast-MoCo (supplementary)",
}


class Printed(NamedTuple):
    """A row of the list of all that the papers print."""

    paper: str
    place: str
    kind: str
    value: object


def printed() -> Iterator[Printed]:
    for name in papers.NAMES:
        paper = papers.load(name)
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


class Answer(NamedTuple):
    """A run, and what it must measure: a metric, or an analysis by its name."""

    run: str
    metric: str | None = None
    analysis: str | None = None
    baseline: str | None = None


def answers(name: str) -> Iterator[Answer]:
    """Of columns that only vary a number of the run, and of curves, those of the last column."""
    paper = papers.load(name)
    for table in paper.tables:
        swept = not any(column.metric for column in table.columns)
        for cell in itertools.chain.from_iterable(row[-1:] if swept else row for row in papers.cells(table)):
            if cell.run is not None:
                yield Answer(cell.run, cell.metric, baseline=cell.row.baseline)
            if cell.minus is not None:
                yield Answer(cell.minus, cell.minus_metric, baseline=cell.row.baseline)
    for figure in paper.figures:
        if figure.run:
            yield Answer(figure.run, analysis=figure.analysis)
        for column, row in itertools.product(figure.columns[-1:], figure.rows.values()):
            yield Answer(f"{row} {column.run}".strip(), figure.metric)


ANSWERS = dict.fromkeys(itertools.chain.from_iterable(map(answers, papers.NAMES)))
SETTINGS = {
    f"{name}: {group.place}: {setting.name}": (group.run, setting)
    for name in papers.NAMES
    for group in papers.load(name).settings
    for setting in group.settings
}


@functools.cache
def composed(run: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        return compose(Path(folder), *run.split())


@functools.cache
def checked(run: str) -> config.Params:
    return config.check(with_numbers(run))


def test_everything_printed_is_there() -> None:
    counts = Counter(row.kind for row in printed())
    assert counts == {"result": 166, "text": 45, "printed gain": 11, "hyperparameter": 120, "figure": 21}
    assert len(SETTINGS) == 120, "two settings of one place have one name"


@pytest.mark.skipif(not SOURCE.is_file(), reason=f"no {SOURCE}, the list that was made from the papers")
@pytest.mark.parametrize("name", papers.NAMES)
def test_every_value_is_the_printed_one(name: str) -> None:
    listed = [row for row in YAML(typ="safe").load(SOURCE)["rows"] if row["paper"] == TITLE_IN_SOURCE[name]]
    expected = Counter(Printed(name, row["table_or_figure"], row["kind"], row["value"]) for row in listed)
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
    """What the source states of a number, and what its run has instead."""
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
    return [key for key, value in stated.items() if value is not None and at(params, key) != value]


def with_numbers(run: str) -> dict[str, Any]:
    """The composed parameters; numbers are put in their places without composing anew, which takes long."""
    numbers = [word for word in run.split() if re.fullmatch(r"[a-z_]+([.][a-z_]+)+=[0-9.]+", word)]
    params = copy.deepcopy(composed(" ".join(word for word in run.split() if word not in numbers)))
    for key, value in (word.split("=") for word in numbers):
        *groups, name = key.split(".")
        place = functools.reduce(operator.getitem, groups, params)
        assert name in place, f"{key} is no parameter of {run}"
        place[name] = YAML(typ="safe").load(value)
    return params


@pytest.mark.skipif(not SOURCE.is_file(), reason=f"no {SOURCE}, the list that was made from the papers")
@pytest.mark.parametrize("name", papers.NAMES)
def test_every_number_stands_at_the_run_that_the_source_describes(name: str) -> None:
    """So that two rows or columns cannot be exchanged: data, loss, batch, epochs, queue and alpha, as far as stated."""
    cells = [
        (table.name, cell)
        for table in papers.load(name).tables
        for row in papers.cells(table)
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
    assert not free


@pytest.mark.parametrize(
    "answer", ANSWERS, ids=lambda answer: f"{answer.run} {answer.analysis or answer.metric}"
)
def test_a_run_composes_and_measures_what_is_printed(answer: Answer) -> None:
    params = checked(answer.run)
    assert params.recipe == answer.run.split()[0].removeprefix("recipe=")
    if answer.analysis:
        assert answer.analysis in params.analyses
        return
    metric, known = answer.metric or "", [*params.evaluations, *params.transfers]
    if answer.baseline:
        known = list(itertools.chain(*params.selected(params.baselines[answer.baseline])))
        metric = metric.removeprefix(f"{answer.baseline}_")
    entry = max((entry for entry in known if metric.startswith(f"{entry}_")), key=len, default=None)
    assert entry, f"{metric} is of none of {known}"
    assert metric.removeprefix(f"{entry}_") in TITLES


@pytest.mark.parametrize("place", [place for place, (_, setting) in SETTINGS.items() if setting.key])
def test_a_setting_is_the_printed_one_or_says_why_not(place: str) -> None:
    run, setting = SETTINGS[place]
    checked(run)
    value: Any = composed(run)
    for part in setting.key.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    assert value == (setting.printed if setting.ours is None else setting.ours)
    assert setting.ours != setting.printed, "ours is for what differs"


def test_gains_that_contradict_the_numbers_they_compare() -> None:
    """Where the same paper prints both numbers that a gain compares, with the difference that they have."""
    found = [(name, *gain) for name in papers.NAMES for gain in gains(name)]
    assert len(found) == 27
    assert {gain for gain in found if gain[-1] != gain[-2]} == {
        ("eqco", "text, sec. 1", 6.1, 5.9),
        ("dcl", "Table 3", 3.1, 2.4),
        ("dcl", "Table 3", 3.7, 3.0),
        ("dcl", "text, sec. 4.2", 3.1, 2.4),
        ("dcl", "text, sec. 4.2", 3.7, 3.0),
    }


def gains(name: str) -> Iterator[tuple[str, float, float]]:
    """Place, printed gain and the difference of the numbers of the two runs, if both are printed too."""
    cells = [
        (table.name, cell)
        for table in papers.load(name).tables
        for cell in itertools.chain.from_iterable(papers.cells(table))
        if cell.run is not None and cell.printed is not None
    ]
    values: dict[tuple, float] = {}
    for place, cell in cells:
        if cell.minus is None:
            value = values.setdefault((cell.run, cell.metric), cell.printed)
            assert value == cell.printed, f"{place}: {cell.run} has two numbers"
    for place, cell in cells:
        whole, part = values.get((cell.run, cell.metric)), values.get((cell.minus, cell.minus_metric))
        if cell.minus is not None and whole is not None and part is not None:
            yield place, cell.printed, round(whole - part, 1)
