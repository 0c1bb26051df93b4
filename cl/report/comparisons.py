"""Losses and methods compared: means and paired differences of experiments that differ in nothing else."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from cl.report.charts import LONG_LABEL
from cl.report.experiments import (
    Experiment,
    dependencies,
    grouped,
    headline_metrics,
    joint_name,
    varying_keys,
)
from cl.statistics import Estimate, estimate, interval_of_mean, mean_and_sd

Line = list[tuple[dict[str, Any], Experiment]]  # experiments, each with the metric's dependencies
SELF_EXPLANATORY = (".kind", ".name")  # ends of the parameters whose values need no explanation
PREDICTOR = "optim.predictor_lr"
SET_BY_METHOD = {"method", "temperature", "bn_group", "loss", "views", "patches", PREDICTOR}


def comparisons(experiments: list[Experiment]) -> Iterator[dict[str, Any]]:
    """Every pair of groups that differ only in the loss, or only in what a method sets, and share two seeds.

    A pair that differs in method and loss is left out if one method was also run with the other's loss.
    """
    for metric in headline_metrics(experiments):
        groups = grouped(measured_rows(metric, experiments), lambda pair: pair[0])
        kinds = [(group[0][0].get("method.kind"), group[0][0].get("loss.kind")) for group in groups]
        for (one, a), (other, b) in combinations(zip(groups, kinds, strict=True), 2):
            keys = varying_keys([one[0][0], other[0][0]])
            differs = list(dict.fromkeys(key if key == PREDICTOR else key.split(".")[0] for key in keys))
            across = {(a[0], b[1]), (b[0], a[1])} - {a, b}
            method = "method" in differs and SET_BY_METHOD.issuperset(differs) and not across & set(kinds)
            if method or differs == ["loss"]:
                yield from _paired(metric, (one, other), differs)


def _paired(metric: str, groups: tuple[Line, Line], differs: list[str]) -> Iterator[dict[str, Any]]:
    """Names and means over the seeds of both, the larger first, and the mean difference of equal seeds."""
    found = [
        (name, {each.seed: value for _, each in reversed(group) if (value := each.find(metric))})
        for name, group in zip(labels(groups), groups, strict=True)
    ]
    seeds = [seed for seed in found[0][1] if seed in found[1][1]]
    if len(seeds) > 1:
        compared = [(estimate([values[seed] for seed in seeds]), name, values) for name, values in found]
        means, names, values = zip(*sorted(compared, key=lambda each: -each[0].mean), strict=True)
        gains = [values[0][seed].mean - values[1][seed].mean for seed in seeds]
        difference = Estimate(*mean_and_sd(gains), len(seeds), interval_of_mean(gains))
        yield {"metric": metric, "names": names, "differs": differs, "means": means, "difference": difference}


def measured_rows(metric: str, experiments: list[Experiment]) -> Line:
    """The experiments that measured the metric, with its data and dependencies."""
    return [
        ({"data": each.data_behind(found), **(dependencies(found, each.params) or {})}, each)
        for each in experiments
        if (found := each.find(metric))
    ]


def labels(lines: Sequence[Line]) -> list[str]:
    """A label for each line: its kinds and names if these distinguish the lines, otherwise all that varies.

    A long label is replaced by the name of the line's first experiment.
    """
    rows = [line[0][0] for line in lines]
    varying = varying_keys(rows) if rows else []
    shown = [key for key in varying if key.endswith(SELF_EXPLANATORY)]
    if len({tuple(str(row.get(key)) for key in shown) for row in rows}) < len(rows):
        shown = varying
    prefixes = {key: "" if key.endswith(SELF_EXPLANATORY) else f"{key} " for key in shown}
    found = [", ".join(f"{prefix}{row.get(key)}" for key, prefix in prefixes.items()) for row in rows]
    return [
        label if len(label) <= LONG_LABEL else joint_name([experiment for _, experiment in line])
        for label, line in zip(found, lines, strict=True)
    ]
