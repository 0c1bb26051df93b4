"""Sweeps: charts of a metric by each number that varies between experiments."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cl.report.charts import LONG_LABEL, Chart
from cl.report.experiments import (
    Experiment,
    dependencies,
    grouped,
    headline_metrics,
    joint_name,
    mean_over_seeds,
    varying_keys,
)

Line = list[tuple[dict[str, Any], Experiment]]  # experiments, each with the metric's dependencies
SELF_EXPLANATORY = (".kind", ".name")  # ends of the parameters whose values need no explanation


def sweeps(experiments: list[Experiment]) -> Iterator[Chart]:
    """A chart for every metric and every number that varies: mean and deviation over seeds.

    A line joins experiments with equal data and evaluation that differ only in this number.
    """
    for metric in headline_metrics(experiments):
        rows = measured_rows(metric, experiments)
        for x in varying_keys([row for row, _ in rows]):
            lines = _lines(x, rows)
            if lines:
                names = labels(lines, x)
                yield _chart(x, metric, dict(zip(names, lines, strict=True)))


def measured_rows(metric: str, experiments: list[Experiment]) -> Line:
    """The experiments that measured the metric, with its data and dependencies."""
    having = [(each, found) for each in experiments if (found := each.find(metric))]
    return [
        ({"data": experiment.data, **(dependencies(found, experiment.params) or {})}, experiment)
        for experiment, found in having
    ]


def _lines(x: str, rows: Line) -> list[Line]:
    """Groups of experiments that differ only in the number x, with at least two values of it."""
    numeric = [pair for pair in rows if type(pair[0].get(x)) in (int, float)]
    lines = grouped(numeric, lambda pair: {key: value for key, value in pair[0].items() if key != x})
    return [line for line in lines if len({row[x] for row, _ in line}) > 1]


def labels(lines: Sequence[Line], excluded: str = "") -> list[str]:
    """A label for each line: its kinds and names if these distinguish the lines, otherwise all that varies.

    A long label is replaced by the name of the line's first experiment.
    """
    rows = [line[0][0] for line in lines]
    varying = [key for key in varying_keys(rows) if key != excluded] if rows else []
    shown = [key for key in varying if key.endswith(SELF_EXPLANATORY)]
    if len({tuple(str(row.get(key)) for key in shown) for row in rows}) < len(rows):
        shown = varying
    prefixes = {key: "" if key.endswith(SELF_EXPLANATORY) else f"{key} " for key in shown}
    found = [", ".join(f"{prefix}{row.get(key)}" for key, prefix in prefixes.items()) for row in rows]
    return [
        label if len(label) <= LONG_LABEL else joint_name([experiment for _, experiment in line])
        for label, line in zip(found, lines, strict=True)
    ]


def _chart(x: str, metric: str, lines: dict[str, Line]) -> Chart:
    log = needs_log_axis(row[x] for line in lines.values() for row, _ in line)
    chart = Chart(f"{metric}-{x.replace('.', '-')}", f"{metric} by {x}", x, f"{metric}, %", log=log)
    for label, line in lines.items():
        for value in sorted({row[x] for row, _ in line}):
            repeats = [experiment for row, experiment in line if row[x] == value]
            if ours := mean_over_seeds(repeats, metric):
                chart.add(label or metric, value, ours.mean, ours.sd)
    return chart


def needs_log_axis(values: Iterable[float]) -> bool:
    """Whether to use a logarithmic axis: all numbers are positive, and the range is a factor of 4 or more."""
    numbers = list(values)
    return min(numbers) > 0 and max(numbers) >= 4 * min(numbers)
