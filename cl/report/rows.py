"""Metrics of evaluations and transfers beside the baselines', with intervals and explanations."""

from typing import Any, NamedTuple

from cl.report.experiments import GROUPS
from cl.report.files import ResultFiles
from cl.runtime.metric_info import Measurement
from cl.statistics import Estimate, estimate

HEADINGS = {"evaluate": "Evaluation", "transfer": "Detection transfer"}
Cell = Estimate | str  # a number, or why it is missing
Column = dict[str, Measurement]  # an encoder's results in one evaluation, by metric


class Gain(NamedTuple):
    """A difference in points; `verdict` (up or down) is empty if the intervals overlap or are unknown."""

    points: float
    verdict: str


def tables(params: dict[str, Any], read: ResultFiles) -> dict[str, list[dict[str, Any]]]:
    """By heading: a row for each evaluation and each transfer that the parameters name."""
    return {
        heading: [_row(stage, name, params, read) for name in params[GROUPS[stage]]]
        for stage, heading in HEADINGS.items()
        if params[GROUPS[stage]]
    }


def _row(stage: str, name: str, params: dict[str, Any], read: ResultFiles) -> dict[str, Any]:
    """One evaluation: its meaning, its settings, and a line for each metric."""
    group, result = GROUPS[stage], f"{stage}/{name}"
    baselines = {
        baseline: chosen for baseline in params["baselines"] if (chosen := _selected(params, baseline, group))
    }
    pretrained = _column(name, read.measurements(result))
    others = [
        (_column(name, read.measurements(f"baseline/{baseline}")), name in chosen)
        for baseline, chosen in baselines.items()
    ]
    known: Column = {}
    for column in (pretrained, *(other for other, _ in others)):
        known |= {key: each for key, each in column.items() if key not in known}
    provenance = read.provenance(result)
    remarks = [provenance.get("engine"), provenance.get("subset"), _seeds(pretrained)]
    used = params[group][name] | provenance.get("reduced", {})  # for few images
    settings = _settings(used, pretrained) if stage == "evaluate" else []
    return {
        "name": name,
        "about": _about(name, [result, *(f"baseline/{baseline}" for baseline in baselines)], read),
        "settings": ", ".join([*settings, *(remark for remark in remarks if remark)]),
        "baselines": list(baselines),
        "lines": [_line(measured, pretrained, others) for measured in known.values() if measured.better],
    }


def _selected(params: dict[str, Any], baseline: str, group: str) -> list[str]:
    """The evaluations or transfers of a baseline."""
    names = params["baselines"][baseline][group]
    return list(params[group]) if names == "all" else names


def _column(name: str, measurements: list[Measurement]) -> Column:
    return {each.name: each for each in measurements if each.entry == name}


def _about(name: str, results: list[str], read: ResultFiles) -> str:
    """The explanation of an evaluation, from the first result with one."""
    explanations = (read.provenance(result).get("about", {}).get(name) for result in results)
    return next(filter(None, explanations), "")


def _seeds(column: Column) -> str:
    n = next((measured.n for measured in column.values()), 0)
    if n > 1:
        return f"mean ± standard deviation over {n} seeds"
    return "one seed" if n else ""


def _settings(config: dict[str, Any], pretrained: Column) -> list[str]:
    """The scalar parameters of an evaluation, and the settings that it chose (metrics without `better`)."""
    scalars = {
        key: value
        for key, value in config.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool) and key != "kind"
    }
    chosen = {each.title: each.mean for each in pretrained.values() if each.better is None}
    return [
        f"{key.replace('_', ' ')} {value if isinstance(value, str) else format(value, 'g')}"
        for key, value in {**scalars, **chosen}.items()
    ]


def _line(measured: Measurement, pretrained: Column, others: list[tuple[Column, bool]]) -> dict[str, Any]:
    """A metric of all encoders; of each other one also whether the parameters request this evaluation."""
    cell = _cell(measured, pretrained)
    cells = [_cell(measured, other, requested) for other, requested in others]
    return {
        "measured": measured,
        "pretrained": cell,
        "others": [(other, gain(cell, other, measured.better)) for other in cells],
    }


def _cell(measured: Measurement, column: Column, requested: bool = True) -> Cell:
    if measured.name in column:
        return estimate([column[measured.name]])
    return "" if column or not requested else "not run"


def gain(pretrained: Cell, other: Cell, better: str | None) -> Gain | None:
    """The difference of two numbers, and whether it is an improvement (`up`) or not (`down`)."""
    if isinstance(pretrained, str) or isinstance(other, str):
        return None
    points = pretrained.mean - other.mean
    if not (pretrained.interval and other.interval) or pretrained.interval.overlaps(other.interval):
        return Gain(points, "")
    return Gain(points, "up" if (points > 0) == (better != "lower") else "down")
