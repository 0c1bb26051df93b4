"""The experiments that reproduce the papers' numbers and figures, and the commands for the missing ones."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cl.report import paper_tables
from cl.report.charts import Chart
from cl.report.comparisons import labels
from cl.report.curves import accuracy, information
from cl.report.experiments import (
    Experiment,
    flatten,
    grouped,
    is_same_measurement,
    mean_over_seeds,
    settings,
    value_at,
)
from cl.report.paper_tables import Cell, Figure, join_overrides
from cl.statistics import Estimate, difference, mean_and_sd

Compose = Callable[[str], dict[str, Any]]  # from Hydra overrides to the parameters they compose to


@dataclass(frozen=True)
class PaperMatch:
    """A number that a paper prints, in percent, and ours.

    run: the Hydra overrides that reproduce it.
    quoted: the source, if the paper quotes the number.
    missing: the runs behind it that no experiment reproduces.
    """

    run: str | None
    printed: float | None
    ours: Estimate | None
    quoted: str | None = None
    missing: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.printed is None or self.ours is None else self.ours.mean - self.printed

    @property
    def verdict(self) -> str:
        """Whether ours is higher (`up`) or lower (`down`); empty if the paper's number is in our interval."""
        if self.printed is None or self.ours is None or self.ours.interval is None:
            return ""
        low, high = self.ours.interval
        if low <= self.printed <= high:
            return ""
        return "up" if self.ours.mean > self.printed else "down"

    @property
    def how(self) -> str:
        """The command that reproduces it; empty without a run."""
        return command(self.run) if self.run else ""

    def text(self) -> str:
        """The paper's number, then ours, for Markdown."""
        printed = "?" if self.printed is None else f"{self.printed:.1f}"
        if self.ours is None:
            return f"{printed} / {'quoted' if self.quoted else 'not run'}"
        gap = "" if self.difference is None else f" ({self.difference:+.1f})"
        return f"{printed} / **{self.ours.number}**, n = {self.ours.n}{gap}"


class PaperMatches:
    """The experiments with all images of a paper's data set, beside the tables and figures of the papers."""

    def __init__(self, experiments: list[Experiment], compose: Compose) -> None:
        self.compose = compose
        self.by_kind: dict[str, list[Experiment]] = {}
        for each in experiments:
            kind = value_at(each.params, "dataset.kind")
            if each.images == paper_tables.IMAGES.get(kind):
                self.by_kind.setdefault(kind, []).append(each)

    def comparable(self, run: str) -> tuple[dict[str, Any], list[Experiment]]:
        """The parameters of a run and the experiments on its data; composes little if there are none."""
        if not self.by_kind or value_at(self.compose(run.split()[0]), "dataset.kind") not in self.by_kind:
            return {}, []
        params = self.compose(run)
        return params, self.by_kind.get(value_at(params, "dataset.kind"), [])

    def result_of_run(
        self, run: str | None, metric: str | None, baseline: str | None = None
    ) -> Estimate | None:
        """The metric's mean over the experiments equal to this run except for the seed, if there are any."""
        if run is None or metric is None:
            return None
        params, experiments = self.comparable(run)
        matching = [
            experiment
            for experiment in experiments
            if (found := experiment.find(metric, baseline))
            and is_same_measurement(found, params, experiment.params)
        ]
        return mean_over_seeds(matching, metric, baseline)

    def match(self, cell: Cell) -> PaperMatch:
        """A cell with our number."""
        ours = self.result_of_run(cell.run, cell.metric, cell.row.baseline)
        missing = [cell.run] if cell.run and not ours else []
        if cell.minus is not None:
            other = self.result_of_run(cell.minus, cell.minus_metric)
            missing += [] if other else [cell.minus]
            ours = difference(ours, other) if ours and other else None
        return PaperMatch(cell.run, cell.printed, ours, cell.row.quoted, tuple(missing))

    def figure(self, figure: Figure) -> dict[str, Any]:
        """The template's values: charts of our experiments, and the commands for the missing ones."""
        charts, missing = self._curves(figure)
        if figure.run:
            charts = self._analysed(figure, *self.comparable(figure.run))
            missing = [] if charts else [figure.run]
        prefix = re.sub(r"[^\w-]+", "-", figure.name)
        return {
            "name": figure.name,
            "caption": figure.caption,
            "diagram": figure.diagram,
            "charts": [replace(chart, name=f"{prefix}-{number}") for number, chart in enumerate(charts)],
            "commands": commands(missing),
        }

    def _curves(self, figure: Figure) -> tuple[list[Chart], list[str]]:
        """A chart with a curve per row, if anything was run, and the missing runs."""
        numbers = [column.label for column in figure.columns if isinstance(column.label, int | float)]
        log = bool(numbers) and len(numbers) == len(figure.columns) and 0 < 4 * min(numbers) <= max(numbers)
        chart = Chart("", figure.caption, figure.x or "", f"{figure.metric}, %", log=log)
        missing = []
        for label, row in figure.rows.items():
            for position, column in enumerate(figure.columns):
                run = join_overrides(column.run, row)
                x = column.label if isinstance(column.label, int | float) else position
                if ours := self.result_of_run(run, figure.metric):
                    chart.add(label, x, ours.mean, ours.sd)
                else:
                    missing.append(run)
        return [chart] if chart.series else [], missing

    @staticmethod
    def _analysed(figure: Figure, params: dict[str, Any], experiments: list[Experiment]) -> list[Chart]:
        """The figure's charts, of all experiments that differ from its `params` only in `varies`."""
        wanted = _fixed(figure, params)
        matching = [
            each for each in experiments if _fixed(figure, each.params) == wanted and _charts(figure, each)
        ]
        groups = grouped(matching, lambda each: settings(each.params))
        names = labels([[(settings(each.params), each) for each in group] for group in groups])
        charts: dict[str, Chart] = {}
        for name, group in zip(names, groups, strict=True):
            first_of_seed = {experiment.seed: experiment for experiment in reversed(group)}
            runs = [_charts(figure, experiment) for experiment in first_of_seed.values()]
            for chart in averaged(runs):
                if figure.chart in (None, chart.name):
                    combined = charts.setdefault(chart.name, replace(chart, series={}))
                    for label, points in chart.series.items():
                        combined.series[", ".join(filter(None, (name, label)))] = points
        return list(charts.values())


def _charts(figure: Figure, experiment: Experiment) -> list[Chart]:
    """The experiment's charts that the figure shows."""
    if figure.analysis:
        return experiment.charts.get(figure.analysis, [])
    chart = accuracy(experiment) if figure.log == "knn" else information(experiment)
    return [chart] if chart.series else []


def _fixed(figure: Figure, params: dict[str, Any]) -> dict[str, Any]:
    """The settings of pretraining, and of the analysis or monitor, that the figure does not vary."""
    place = f"analyses.{figure.analysis}" if figure.analysis else "optim.monitor"
    fixed = settings(params) | dict(flatten(value_at(params, place), "analysis"))
    return {key: value for key, value in fixed.items() if not key.startswith(tuple(figure.varies))}


def averaged(runs: list[list[Chart]]) -> Iterator[Chart]:
    """The first run's charts; each point is the mean and deviation over the runs with this point."""
    for chart in runs[0]:
        others = [other for run in runs[1:] for other in run if other.name == chart.name]
        mean = replace(chart, series={})
        for label, points in chart.series.items():
            for point in points:
                repeats = [p.y for other in others for p in other.series.get(label, []) if p.x == point.x]
                y, sd = mean_and_sd([point.y, *repeats]) if repeats else (point.y, point.sd)
                mean.add(label, point.x, y, sd)
        yield mean


def command(run: str) -> str:
    """The command that runs these overrides."""
    return "dvc exp run " + " ".join(f"-S {shlex.quote(word)}" for word in run.split())


def commands(runs: Iterable[str]) -> list[str]:
    """The commands for these runs, each once."""
    return [command(run) for run in dict.fromkeys(runs)]
