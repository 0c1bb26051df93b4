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


def baseline_rows(experiments: list[Experiment], keys: list[str], metrics: list[str]) -> list[dict[str, Any]]:
    """Means over seeds: a row for each combination of baseline, data, encoder, training and protocol.

    Of the parameters `keys`, a row has the values on which the baseline depends.
    """
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
            rows.append({"name": name, "values": [depends.get(key, "") for key in keys], "metrics": means})
    return rows


def _dependencies(experiment: Experiment, baseline: str) -> dict[str, Any]:
    """The parameters, except the seed, and the data that a baseline's results depend on."""
    params = experiment.params
    protocol = {
        "training": value_at(params, f"baselines.{baseline}.training"),
        "evaluations": params.get("evaluations"),
        "transfers": params.get("transfers"),
    }
    return {"data": experiment.data, **settings(params, SUPERVISED), **dict(flatten(protocol))}
