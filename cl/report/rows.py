"""The metrics of evaluations and transfers beside those of the baselines, with intervals and explanations."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cl.report.files import ResultFiles
from cl.report.intervals import Interval, interval

GROUPS = {
    "Evaluation": ("evaluate", "evaluations"),
    "Detection transfer": ("transfer", "transfers"),
}
REPEATS = "n"  # how many seeds a result's metrics are means of
TECHNICAL = ("kind", "memory")  # parameters that do not change a result


class Cell(NamedTuple):
    """A number with its standard deviation over seeds and its interval, or why it is missing."""

    value: float | str
    sd: float | None = None
    interval: Interval | None = None


class Gain(NamedTuple):
    """A difference in points; `verdict` is empty where the intervals overlap or are unknown."""

    points: float
    verdict: str


@dataclass(frozen=True)
class Column:
    """The metrics of an encoder in one evaluation, by name without prefix, and what they mean.

    requested: whether the parameters ask for them.
    """

    metrics: dict[str, float]
    numbers: dict[str, dict[str, Any]] = field(default_factory=dict)
    requested: bool = True

    def cell(self, metric: str) -> Cell:
        if metric not in self.metrics:
            return Cell("" if self.metrics or not self.requested else "not run")
        value, sd = self.metrics[metric], self.metrics.get(f"{metric}_sd")
        images = self.numbers.get(metric, {}).get("images")
        return Cell(value, sd, interval(value, images, sd, int(self.metrics.get(REPEATS, 1))))


def tables(
    params: dict[str, Any], read: ResultFiles, baselines: dict[str, dict[str, float]]
) -> dict[str, list[dict[str, Any]]]:
    """For each group of evaluations, a row for each that the parameters name."""
    found = {}
    for title, (stage, group) in GROUPS.items():
        chosen = {name: baselines[name] for name in baselines if _selected(params, name, group)}
        found[title] = [_row(stage, group, name, params, read, chosen) for name in params[group]]
    return {title: rows for title, rows in found.items() if rows}


def _selected(params: dict[str, Any], baseline: str, group: str) -> list[str]:
    """The evaluations or transfers that a baseline goes through."""
    names = params["baselines"][baseline][group]
    return list(params[group]) if names == "all" else names


def _row(
    stage: str,
    group: str,
    name: str,
    params: dict[str, Any],
    read: ResultFiles,
    baselines: dict[str, dict[str, float]],
) -> dict[str, Any]:
    """One evaluation: what it measures, its settings, and a line for each metric."""
    result = f"{stage}/{name}"
    metrics = {key.removeprefix(f"{name}_"): value for key, value in read.metrics(result).items()}
    provenance = read.provenance(result)
    explained = provenance.get("explained", {})
    own = Column(metrics, explained.get("numbers", {}))
    entries = [*params["evaluations"], *params["transfers"]]
    others = [
        _of_baseline(baseline, name, name in _selected(params, baseline, group), read, entries, found)
        for baseline, found in baselines.items()
    ]
    known = {metric: number for column in (*others, own) for metric, number in column.numbers.items()}
    names = dict.fromkeys(metric for column in (own, *others) for metric in column.metrics)
    shown = [metric for metric in names if _is_shown(metric, names, known)]
    remarks = [provenance.get("engine"), provenance.get("subset"), _seeds(metrics)]
    settings = _settings(params[group][name], metrics, known) if group == "evaluations" else []
    return {
        "name": name,
        "about": explained.get("about") or _about_baseline(name, baselines, read),
        "settings": ", ".join([*settings, *(remark for remark in remarks if remark)]),
        "baselines": list(baselines),
        "lines": [_line(metric, known.get(metric, {}), own, others) for metric in shown],
    }


def _about_baseline(name: str, baselines: Collection[str], read: ResultFiles) -> str:
    found = [read.provenance(f"baseline/{other}").get("explained", {}).get(name, {}) for other in baselines]
    return next((explained["about"] for explained in found if explained), "")


def _of_baseline(
    baseline: str,
    name: str,
    requested: bool,
    read: ResultFiles,
    entries: list[str],
    metrics: dict[str, float],
) -> Column:
    """A baseline's metrics in one evaluation, without those of longer names (for knn, not knn_200)."""
    prefix = f"{baseline}_{name}_"
    longer = tuple(f"{baseline}_{other}_" for other in entries if other.startswith(f"{name}_"))
    own = {
        key.removeprefix(prefix): value
        for key, value in metrics.items()
        if key.startswith(prefix) and not key.startswith(longer)
    }
    explained = read.provenance(f"baseline/{baseline}").get("explained", {}).get(name, {})
    return Column(own, explained.get("numbers", {}), requested)


def _is_shown(metric: str, metrics: Collection[str], numbers: dict[str, dict[str, Any]]) -> bool:
    """Whether this is a result: neither a setting nor a standard deviation nor the number of seeds."""
    is_setting = metric in numbers and numbers[metric]["better"] is None
    is_deviation = metric.endswith("_sd") and metric.removesuffix("_sd") in metrics
    return not (is_setting or is_deviation or metric == REPEATS)


def _seeds(metrics: dict[str, float]) -> str:
    if not metrics:
        return ""
    seeds = int(metrics.get(REPEATS, 1))
    return "one seed" if seeds == 1 else f"mean ± standard deviation over {seeds} seeds"


def _settings(
    config: dict[str, Any], metrics: dict[str, float], numbers: dict[str, dict[str, Any]]
) -> list[str]:
    """The single parameters of an evaluation, and the settings among its metrics."""
    single = {
        key: value
        for key, value in config.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool) and key not in TECHNICAL
    }
    chosen = {
        number["title"]: metrics[metric]
        for metric, number in numbers.items()
        if number["better"] is None and metric in metrics
    }
    return [
        f"{key.replace('_', ' ')} {value if isinstance(value, str) else format(value, 'g')}"
        for key, value in {**single, **chosen}.items()
    ]


def _line(metric: str, number: dict[str, Any], own: Column, others: list[Column]) -> dict[str, Any]:
    cell = own.cell(metric)
    cells = [other.cell(metric) for other in others]
    better = number.get("better")
    return {
        "title": number.get("title", metric.replace("_", " ")),
        "meaning": number.get("meaning", ""),
        "better": better,
        "own": cell,
        "others": [(other, gain(cell, other, better)) for other in cells],
    }


def gain(own: Cell, other: Cell, better: str | None) -> Gain | None:
    """The difference of two numbers, and whether it is for the better (`up`) or worse (`down`)."""
    if isinstance(own.value, str) or isinstance(other.value, str):
        return None
    points = own.value - other.value
    if not (own.interval and other.interval) or own.interval.overlaps(other.interval):
        return Gain(points, "")
    return Gain(points, "up" if (points > 0) == (better != "lower") else "down")
