"""Rows of the baselines, which experiments on the same data share."""

from typing import Any

from cl.report.experiments import (
    SUPERVISED,
    Experiment,
    flatten,
    grouped,
    mean_over_seeds,
    settings,
    value_at,
)
from cl.report.sweeps import labels


def baseline_rows(experiments: list[Experiment], metrics: list[str]) -> list[dict[str, Any]]:
    """Means over seeds: a row for each combination of baseline, data, encoder, training and protocol."""
    used = [
        (name, _dependencies(experiment, name), experiment)
        for experiment in experiments
        for name in experiment.params.get("baselines") or {}
    ]
    rows = []
    for sharing in grouped(used, lambda use: use[:2]):
        name, depends, _ = sharing[0]
        means = [mean_over_seeds([experiment for *_, experiment in sharing], each, name) for each in metrics]
        if any(means):
            rows.append({"baseline": name, "depends": depends, "metrics": means})
    return [{"name": _name(row, rows), "metrics": row["metrics"]} for row in rows]


def _dependencies(experiment: Experiment, baseline: str) -> dict[str, Any]:
    """The parameters, except the seed, and the data that a baseline's results depend on."""
    params = experiment.params
    protocol = {
        "training": value_at(params, f"baselines.{baseline}.training"),
        "evaluations": params.get("evaluations"),
        "transfers": params.get("transfers"),
    }
    return {"data": experiment.data, **settings(params, SUPERVISED), **dict(flatten(protocol))}


def _name(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The baseline's name, with its distinguishing parameters if several rows have this name."""
    same = [other["depends"] for other in rows if other["baseline"] == row["baseline"]]
    if len(same) == 1:
        return str(row["baseline"])
    return f"{row['baseline']} ({labels(same)[same.index(row['depends'])]})"
