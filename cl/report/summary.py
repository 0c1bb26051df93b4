"""All experiments on one page: each beside the others, their sweeps, and the papers' tables with our numbers in them."""

import re
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from cl.charts import Chart
from cl.report import paper_tables as papers
from cl.report.experiments import (
    Experiment,
    at,
    differing,
    entry_of,
    flat,
    headlines,
    labels,
    settings,
    spread,
    sweeps,
    varying,
)
from cl.report.page import drawn, environment
from cl.report.paper_matches import Answers, Expected, commands, printed_values
from cl.report.paper_tables import Figure, Table

SHOWN = 8  # columns of parameters


def page(experiments: list[Experiment], expected: Expected) -> tuple[str, str]:
    """The same as HTML, self-contained, and as Markdown.

    Args:
        experiments: distinct ones, in the order in which they count where several have the same parameters and seed.
        expected: the parameters that Hydra overrides compose to.
    """
    answers = Answers(experiments, expected)
    sheets = [_paper(papers.load(name), answers) for name in papers.NAMES]
    cells = [
        answer
        for paper in sheets
        for table in paper["tables"]
        for row in table["rows"]
        for answer in row["answers"]
    ]
    swept = list(sweeps(experiments))
    context = {
        "experiments": experiments,
        "rows": _rows(experiments),
        "sweeps": swept,
        "papers": sheets,
        "asked": sum(not answer.quoted for answer in cells),
        "answered": sum(answer.ours is not None and not answer.quoted for answer in cells),
        "problems": [
            (experiment.name, problem) for experiment in experiments for problem in experiment.problems
        ],
        "beside": list(
            _beside(answers, {name for answer in cells if answer.ours for name in answer.ours.names})
        ),
    }
    drawings = {"sweeps": [drawn(chart) for chart in swept], "drawn": drawn}
    html = environment().get_template("summary.html").render({**context, **drawings})
    return html, environment().get_template("summary.md").render(context)


def _beside(answers: Answers, counted: set[str]) -> Iterator[tuple[str, str]]:
    """Experiments that name a recipe but fill no cell, and in what they are not the recipe."""
    for experiment in answers.experiments:
        recipe = experiment.params.get("recipe")
        if not recipe or experiment.name in counted:
            continue
        wanted = answers.expected(f"recipe={recipe}")
        keys = varying([settings(wanted), settings(experiment.params)])
        if wanted and experiment not in answers.whole(wanted):
            keys.append(f"number of images ({', '.join(map(str, experiment.images))})")
        yield experiment.name, f"recipe {recipe} with another {', '.join(keys) or 'protocol'}"


def _rows(experiments: list[Experiment]) -> dict[str, Any]:
    """The table of experiments: the parameters that they differ in, and the first number of each evaluation."""
    found = differing(experiments)
    keys = found[:SHOWN]
    short = {key: key.removesuffix(".kind").split(".")[-1] for key in keys}
    names = {key: name if list(short.values()).count(name) == 1 else key for key, name in short.items()}
    metrics = headlines(experiments)
    values = [settings(experiment.params) | {"seed": experiment.seed} for experiment in experiments]
    lines = [
        {
            "experiment": experiment,
            "values": [row.get(key, "-") for key in keys],
            "metrics": [experiment.metrics.get(metric) for metric in metrics],
            "seconds": experiment.provenance.get("pretrain", {}).get("seconds"),
            "finished": experiment.provenance.get("pretrain", {}).get("finished", ""),
        }
        for experiment, row in zip(experiments, values, strict=True)
    ]
    return {
        "names": [names[key] for key in keys],
        "hidden": found[SHOWN:],
        "metrics": metrics,
        "best": [best for metric in metrics if (best := _best(metric, experiments))],
        "lines": lines,
    }


def _best(metric: str, experiments: list[Experiment]) -> tuple[str, Experiment] | None:
    """The experiment with the largest value, if all that have one were measured on the same data in the same way."""
    having = [experiment for experiment in experiments if metric in experiment.metrics]
    ways = [
        (experiment.data, at(experiment.params, ".".join(entry_of(metric, experiment.params) or ())))
        for experiment in having
    ]
    return (
        (metric, max(having, key=lambda e: e.metrics[metric]))
        if all(way == ways[0] for way in ways)
        else None
    )


def _paper(paper: papers.Paper, answers: Answers) -> dict[str, Any]:
    printed = printed_values(paper)
    return {
        "title": paper.title,
        "tables": [_table(table, answers, printed) for table in paper.tables],
        "figures": [_figure(figure, answers) for figure in paper.figures],
        "settings": paper.settings,
    }


def _table(
    table: Table, answers: Answers, printed: dict[tuple[str | None, str | None], float]
) -> dict[str, Any]:
    """Titles, answers and notes as printed: a table whose columns are the printed rows is turned."""
    cells = list(papers.cells(table))
    grid = [[answers.of_cell(cell, printed) for cell in row] for row in cells]
    missing = [run for row in cells for cell in row for run in answers.missing(cell)]
    across: list[dict[str, Any]] = [{"label": column.label, "quoted": None} for column in table.columns]
    down: list[dict[str, Any]] = [{"label": row.label, "quoted": row.quoted} for row in table.rows]
    if table.turned:
        across, down, grid = down, across, [list(column) for column in zip(*grid, strict=True)]
    return {
        "name": table.name,
        "caption": table.caption,
        "columns": across,
        "rows": [{**title, "answers": found} for title, found in zip(down, grid, strict=True)],
        "notes": [f"{row.label}: {row.note}" for row in table.rows if row.note],
        "commands": commands(missing),
    }


def _figure(figure: Figure, answers: Answers) -> dict[str, Any]:
    """Drawn as far as there are experiments for it, and how to run the rest."""
    found: list[Chart] = []
    missing: list[str] = []
    if figure.analysis and figure.run:
        found = list(_analysed(figure, answers))
        missing = [] if found else [figure.run]
    elif figure.rows:
        numbers = [column.label for column in figure.columns if isinstance(column.label, int | float)]
        log = len(numbers) == len(figure.columns) and spread(numbers)
        chart = Chart("", figure.caption, figure.x or "", f"{figure.metric}, %", log=log)
        for label, run in figure.rows.items():
            for position, column in enumerate(figure.columns):
                whole = papers.joined(column.run, run)
                if ours := answers.of_run(whole, figure.metric):
                    chart.add(
                        label,
                        column.label if isinstance(column.label, int | float) else position,
                        ours.mean,
                        ours.sd,
                    )
                else:
                    missing.append(whole)
        found = [chart] if chart.series else []
    prefix = re.sub(r"[^\w-]+", "-", figure.name)
    return {
        "name": figure.name,
        "caption": figure.caption,
        "diagram": figure.diagram,
        "charts": [replace(chart, name=f"{prefix}-{number}") for number, chart in enumerate(found)],
        "commands": commands(missing),
    }


def _analysed(figure: Figure, answers: Answers) -> Iterator[Chart]:
    """The figure's chart of every experiment that is its run but for what the figure varies, seeds averaged."""
    assert figure.run
    if not answers.has_data_of(figure.run):
        return
    expected = answers.expected(figure.run)
    groups: dict[str, list[tuple[dict[str, Any], Experiment]]] = {}
    for experiment in answers.whole(expected):
        if (
            _fixed(figure, experiment.params) == _fixed(figure, expected)
            and figure.analysis in experiment.charts
        ):
            row = settings(experiment.params)
            groups.setdefault(repr(sorted(row.items(), key=str)), []).append((row, experiment))
    names = labels([group[0][0] for group in groups.values()])
    charts: dict[str, Chart] = {}
    for name, group in zip(names, groups.values(), strict=True):
        seeds = {experiment.seed: experiment for _, experiment in reversed(group)}
        for chart in averaged([experiment.charts[figure.analysis or ""] for experiment in seeds.values()]):
            if figure.chart in (None, chart.name):
                whole = charts.setdefault(chart.name, replace(chart, series={}))
                whole.series |= {
                    ", ".join(filter(None, (name, label))): points for label, points in chart.series.items()
                }
    yield from charts.values()


def _fixed(figure: Figure, params: dict[str, Any]) -> dict[str, Any]:
    """The settings of pretraining and of the analysis that the figure does not vary."""
    own = settings(params) | dict(flat(at(params, f"analyses.{figure.analysis}"), "analysis"))
    return {key: value for key, value in own.items() if not key.startswith(tuple(figure.varies))}


def averaged(runs: list[list[Chart]]) -> Iterator[Chart]:
    """The charts of the first run, each point as the mean over all runs that have it, with their deviation."""
    for chart in runs[0]:
        others = [other for run in runs[1:] for other in run if other.name == chart.name]
        mean = replace(chart, series={})
        for label, points in chart.series.items():
            for point in points:
                same_x = [p.y for other in others for p in other.series.get(label, []) if p.x == point.x]
                values = [point.y, *same_x]
                mean.add(label, point.x, fmean(values), stdev(values) if same_x else point.sd)
        yield mean
