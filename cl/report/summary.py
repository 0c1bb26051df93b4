"""The page about all experiments: parameters, results, and the papers' tables with our numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from cl.report import paper_tables
from cl.report.comparisons import comparisons, measured_rows
from cl.report.curves import drawing, overlaid
from cl.report.experiments import (
    GROUPS,
    SUPERVISED,
    Experiment,
    flatten,
    grouped,
    headline_metrics,
    joint_name,
    mean_over_seeds,
    settings,
    varying_keys,
    varying_params,
)
from cl.report.page import dataset_name, rendered
from cl.report.paper_matches import Compose, PaperMatches, commands
from cl.runtime.metric_info import Measurement
from cl.statistics import Estimate

Title = Callable[[str, dict[str, Any]], str]  # of a stage and the parameters of its entry
MAX_COLUMNS = 5  # of parameters, so that results are in sight
BUDGET = ("optim.epochs", "optim.least_steps", "init", "start_from")  # of training
TEXT_COLUMNS = 5  # of evaluations on a terminal of 80 columns


def page(experiments: list[Experiment], compose: Compose, title: Title) -> tuple[str, str]:
    """The summary as self-contained HTML and as Markdown; of equal parameters and seed, the first counts.

    compose: returns the parameters that Hydra overrides compose to.
    title: returns what an evaluation or transfer with these parameters is called.
    """
    matches = PaperMatches(experiments, compose)
    papers = [_paper(paper_tables.load(name), matches) for name in paper_tables.NAMES]
    tables = [table for paper in papers for table in paper["tables"]]
    cells = [match for table in tables for row in table["rows"] for match in row["matches"]]
    curves = overlaid(experiments)
    meaning = "Experiments that differ only in the seed share a line: their mean and standard deviation."
    context = {
        "experiments": experiments,
        "rows": _rows(experiments, title),
        "comparisons": list(comparisons(experiments)),
        "papers": papers,
        "asked": sum(not match.quoted for match in cells),
        "answered": sum(match.ours is not None and not match.quoted for match in cells),
        "problems": [(e.name, problem) for e in experiments for problem in e.problems],
        "drawing": drawing,
        "curves": [drawing(curves, meaning)] if curves else [],
    }
    return rendered("summary", context)


def table(experiments: list[Experiment]) -> Table:
    """A row for each experiment, and a column for each evaluation that most of them share."""
    metrics = headline_metrics(experiments)
    metrics = sorted(metrics, key=lambda metric: -sum(bool(each.find(metric)) for each in experiments))
    metrics = metrics[:TEXT_COLUMNS]
    printed = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("experiment", "data", "method", "loss"):
        printed.add_column(name, no_wrap=True)
    for metric in ("seed", *metrics):
        name = metric.rpartition("_")[0] or metric  # without top1 and the like
        printed.add_column(name, justify="right", no_wrap=True, min_width=max(4, len(name)))
    for each in experiments:
        kinds = (each.params[group]["kind"] for group in ("method", "loss"))
        numbers = (f"{found.mean:.1f}" if (found := each.find(metric)) else "-" for metric in metrics)
        data = Path(dataset_name(each.params)).name
        cells = (each.name, data, *kinds, str(each.seed), *numbers)
        printed.add_row(*map(Text, cells))  # brackets in names are not markup
    return printed


def _rows(experiments: list[Experiment], title: Title) -> dict[str, Any]:
    """The table of experiments: the parameters that vary, and the headline metric of each evaluation."""
    varying = varying_params(experiments)
    keys = varying[:MAX_COLUMNS]
    metrics = headline_metrics(experiments)
    groups = grouped(
        experiments, lambda e: [e.data, settings(e.params), *map(e.params.get, ("evaluations", "transfers"))]
    )
    first = {
        metric: next((found, each.params) for each in experiments if (found := each.find(metric)))
        for metric in metrics
    }
    protocols = (varying_keys([row for row, _ in measured_rows(metric, experiments)]) for metric in metrics)
    named = {"the images": any(key.startswith("dataset.") for key in varying)}
    differing = ("the images" if key == "data" else key for keys in protocols for key in keys)
    measured = [key for key in differing if not named.get(key, key.split(".")[0] not in GROUPS.values())]
    several = [group for group in groups if len({experiment.seed for experiment in group}) > 1]
    return {
        "names": _short_names(keys),
        "hidden": [*varying[MAX_COLUMNS:], *dict.fromkeys(measured)],
        "metrics": metrics,
        "best": [best for found, _ in first.values() if (best := _best(found, groups))],
        "lines": [_line(group, keys, metrics) for group in (*several, *([each] for each in experiments))],
        "baselines": _baselines(experiments, keys, metrics),
        "words": {metric: _in_words(*each, title) for metric, each in first.items()},
        "meanings": {metric: found for metric, (found, _) in first.items()},
    }


def _in_words(found: Measurement, params: dict[str, Any], title: Title) -> str:
    """Evaluation and metric as in reports; the metric's key if this code does not know its parameters."""
    try:
        return f"{title(found.stage, params[GROUPS[found.stage]][found.entry])}, {found.title}"
    except (ImportError, ValueError):  # of an older experiment, or of a branch with its own evaluation
        return found.name


def _line(group: list[Experiment], keys: list[str], metrics: list[str]) -> dict[str, Any]:
    """One experiment, or the means of several seeds."""
    first, seeds = group[0], sorted({experiment.seed for experiment in group})
    values = settings(first.params) | {"seed": ", ".join(map(str, seeds))}
    pretraining = first.provenance.get("pretrain", {}) if len(group) == 1 else {}
    return {
        "experiment": first if len(group) == 1 else None,
        "name": joint_name(group) + ("" if len(group) == 1 else ", mean"),
        "seeds": len(seeds),
        "values": [f"{v:g}" if isinstance(v := values.get(key, "-"), float) else v for key in keys],
        "metrics": [mean_over_seeds(group, metric) for metric in metrics],
        "seconds": pretraining.get("seconds"),
        "finished": pretraining.get("finished", ""),
    }


def _baselines(experiments: list[Experiment], keys: list[str], metrics: list[str]) -> list[dict[str, Any]]:
    """Means over seeds: a row for each combination of baseline, data, encoder, training and protocol.

    Of the parameters `keys`, it has the values on which the baseline depends.
    """
    used = []
    for experiment in experiments:
        params = experiment.params
        common = {"data": experiment.data, **settings(params, SUPERVISED)}
        protocol = {group: params.get(group) for group in ("evaluations", "transfers")}
        for name, baseline in (params.get("baselines") or {}).items():
            own = {key: baseline.get(key) for key in ("training", "weights")}
            used.append((name, common | dict(flatten(own | protocol)), experiment))
    rows = []
    for sharing in grouped(used, lambda use: use[:2]):
        name, depends, _ = sharing[0]
        means = [mean_over_seeds([experiment for *_, experiment in sharing], each, name) for each in metrics]
        if any(means):
            rows.append({"name": name, "values": [depends.get(key, "") for key in keys], "metrics": means})
    return rows


def _short_names(keys: list[str]) -> list[str]:
    """The last part of each dotted key, ignoring `.kind`; the whole key if the short name is ambiguous."""
    short = [key.removesuffix(".kind").split(".")[-1] for key in keys]
    return [name if short.count(name) == 1 else key for key, name in zip(keys, short, strict=True)]


def _best(found: Measurement, groups: list[list[Experiment]]) -> tuple[str, Estimate] | None:
    """The metric and its best mean over seeds; None if they differ in data, protocol or budget."""
    rows = [row for group in groups for row, _ in measured_rows(found.name, group)]
    if any(key.startswith(("data", *GROUPS.values(), *BUDGET)) for key in varying_keys(rows)):
        return None
    means = [mean for group in groups if (mean := mean_over_seeds(group, found.name))]
    best = min if found.better == "lower" else max
    return (found.name, best(means, key=lambda mean: mean.mean)) if len(means) > 1 else None


def _paper(paper: paper_tables.Paper, matches: PaperMatches) -> dict[str, Any]:
    tables = [_table(table, matches) for table in paper.tables]
    figures = [matches.figure(figure) for figure in paper.figures]
    return {
        "title": paper.title,
        "tables": tables,
        "figures": figures,
        "answered": any(part.get("answered") or part.get("charts") for part in (*tables, *figures)),
        "settings": paper.settings,
    }


def _table(table: paper_tables.PaperTable, matches: PaperMatches) -> dict[str, Any]:
    """Titles, matches and notes, transposed if the columns are the rows of the printed table."""
    grid = [[matches.match(cell) for cell in row] for row in paper_tables.cells(table)]
    missing = [run for row in grid for match in row for run in match.missing]
    across: list[dict[str, Any]] = [{"label": column.label, "quoted": None} for column in table.columns]
    down: list[dict[str, Any]] = [{"label": row.label, "quoted": row.quoted} for row in table.rows]
    if table.turned:
        across, down, grid = down, across, [list(column) for column in zip(*grid, strict=True)]
    return {
        "name": table.name,
        "answered": any(match.ours for row in grid for match in row),
        "caption": table.caption,
        "columns": across,
        "rows": [{**title, "matches": row} for title, row in zip(down, grid, strict=True)],
        "notes": [f"{row.label}: {row.note}" for row in table.rows if row.note],
        "commands": commands(missing),
    }
