"""Metrics of evaluations and transfers beside the baselines', with intervals and explanations."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from cl.report.experiments import GROUPS
from cl.report.files import ResultFiles
from cl.report.intervals import Estimate, estimate
from cl.runtime.metric_info import Measurement

HEADINGS = {"evaluate": "Evaluation", "transfer": "Detection transfer"}
TECHNICAL = ("kind", "memory")  # parameters that do not change a result
Cell = Estimate | str  # a number, or why it is missing


class Gain(NamedTuple):
    """A difference in points; `verdict` (up or down) is empty if the intervals overlap or are unknown."""

    points: float
    verdict: str


@dataclass(frozen=True)
class Column:
    """An encoder's results in one evaluation, by metric.

    requested: whether the parameters request this evaluation of this encoder.
    """

    measured: dict[str, Measurement]
    requested: bool = True

    def cell(self, name: str) -> Cell:
        if name in self.measured:
            return estimate([self.measured[name]])
        return "" if self.measured or not self.requested else "not run"


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
        _column(name, read.measurements(f"baseline/{baseline}"), requested=name in chosen)
        for baseline, chosen in baselines.items()
    ]
    known: dict[str, Measurement] = {}
    for column in (pretrained, *others):
        known |= {key: each for key, each in column.measured.items() if key not in known}
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


def _column(name: str, measurements: list[Measurement], *, requested: bool = True) -> Column:
    return Column({each.name: each for each in measurements if each.entry == name}, requested)


def _about(name: str, results: list[str], read: ResultFiles) -> str:
    """The explanation of an evaluation, from the first result with one."""
    explanations = (read.provenance(result).get("about", {}).get(name) for result in results)
    return next(filter(None, explanations), "")


def _seeds(column: Column) -> str:
    n = next((measured.n for measured in column.measured.values()), 0)
    if n > 1:
        return f"mean ± standard deviation over {n} seeds"
    return "one seed" if n else ""


def _settings(config: dict[str, Any], pretrained: Column) -> list[str]:
    """The scalar parameters of an evaluation, and the settings that it chose (metrics without `better`)."""
    scalars = {
        key: value
        for key, value in config.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool) and key not in TECHNICAL
    }
    chosen = {each.title: each.mean for each in pretrained.measured.values() if each.better is None}
    return [
        f"{key.replace('_', ' ')} {value if isinstance(value, str) else format(value, 'g')}"
        for key, value in {**scalars, **chosen}.items()
    ]


def _line(measured: Measurement, pretrained: Column, others: list[Column]) -> dict[str, Any]:
    cell = pretrained.cell(measured.name)
    cells = [other.cell(measured.name) for other in others]
    return {
        "measured": measured,
        "pretrained": cell,
        "others": [(other, gain(cell, other, measured.better)) for other in cells],
    }


def gain(pretrained: Cell, other: Cell, better: str | None) -> Gain | None:
    """The difference of two numbers, and whether it is an improvement (`up`) or not (`down`)."""
    if isinstance(pretrained, str) or isinstance(other, str):
        return None
    points = pretrained.mean - other.mean
    if not (pretrained.interval and other.interval) or pretrained.interval.overlaps(other.interval):
        return Gain(points, "")
    return Gain(points, "up" if (points > 0) == (better != "lower") else "down")
