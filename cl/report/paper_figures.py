"""The papers' figures, drawn from our experiments."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cl.report.charts import Chart
from cl.report.comparisons import labels
from cl.report.curves import accuracy, information
from cl.report.experiments import Experiment, flatten, grouped, settings, value_at
from cl.report.paper_matches import PaperMatches, commands
from cl.report.paper_tables import Figure, join_overrides
from cl.statistics import mean_and_sd


def figure_context(figure: Figure, matches: PaperMatches) -> dict[str, Any]:
    """The template's values: charts of our experiments, and the commands for the missing ones."""
    charts: list[Chart] = []
    missing: list[str] = []
    if figure.run:
        charts = list(_analysed(figure, matches))
        missing = [] if charts else [figure.run]
    elif figure.rows:
        chart, missing = _curves(figure, matches)
        charts = [chart] if chart.series else []
    prefix = re.sub(r"[^\w-]+", "-", figure.name)
    return {
        "name": figure.name,
        "caption": figure.caption,
        "diagram": figure.diagram,
        "charts": [replace(chart, name=f"{prefix}-{number}") for number, chart in enumerate(charts)],
        "commands": commands(missing),
    }


def _curves(figure: Figure, matches: PaperMatches) -> tuple[Chart, list[str]]:
    """A chart with a curve per row, and the missing runs."""
    numbers = [column.label for column in figure.columns if isinstance(column.label, int | float)]
    log = len(numbers) == len(figure.columns) and 0 < 4 * min(numbers) <= max(numbers)
    chart = Chart("", figure.caption, figure.x or "", f"{figure.metric}, %", log=log)
    missing = []
    for label, row in figure.rows.items():
        for position, column in enumerate(figure.columns):
            run = join_overrides(column.run, row)
            x = column.label if isinstance(column.label, int | float) else position
            if ours := matches.result_of_run(run, figure.metric):
                chart.add(label, x, ours.mean, ours.sd)
            else:
                missing.append(run)
    return chart, missing


def _analysed(figure: Figure, matches: PaperMatches) -> Iterator[Chart]:
    """The figure's charts, with the series of all experiments that differ from its run only in `varies`."""
    assert figure.run
    if not matches.has_data_of(figure.run):
        return
    expected = matches.compose(figure.run)
    wanted = _fixed(figure, expected)
    matching = [
        experiment
        for experiment in matches.full_size(expected)
        if _charts(figure, experiment) and _fixed(figure, experiment.params) == wanted
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
    yield from charts.values()


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
