"""Sweeps: charts of a metric by each number that experiments vary."""

from collections.abc import Iterable, Iterator
from typing import Any

from cl.report.charts import Chart
from cl.report.experiments import (
    Experiment,
    dependencies,
    grouped,
    headline_metrics,
    mean_over_seeds,
    varying_keys,
)

Line = list[tuple[dict[str, Any], Experiment]]  # experiments with the parameters that matter to the metric


def sweeps(experiments: list[Experiment]) -> Iterator[Chart]:
    """A chart for every metric and every number that varies: mean and deviation over seeds.

    A line joins experiments on the same data, with the same evaluation, that differ in this number alone.
    """
    for metric in headline_metrics(experiments):
        having = [(each, found) for each in experiments if (found := each.find(metric))]
        rows = [
            ({"data": experiment.data, **(dependencies(found, experiment.params) or {})}, experiment)
            for experiment, found in having
        ]
        for x in varying_keys([row for row, _ in rows]):
            lines = _lines(x, rows)
            if lines:
                names = labels([line[0][0] for line in lines], x)
                yield _chart(x, metric, dict(zip(names, lines, strict=True)))


def _lines(x: str, rows: Line) -> list[Line]:
    """Groups of experiments that differ in the number x alone, with at least two values of it."""
    numeric = [pair for pair in rows if _is_number(pair[0].get(x))]
    lines = grouped(numeric, lambda pair: {key: value for key, value in pair[0].items() if key != x})
    return [line for line in lines if len({row[x] for row, _ in line}) > 1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


SPEAKING = (".kind", ".name")  # parameters whose values need no explanation


def labels(rows: list[dict[str, Any]], excluded: str = "") -> list[str]:
    """A label for each row: its kinds and names if these tell the rows apart, otherwise all that varies."""
    keys = [key for key in varying_keys(rows) if key != excluded] if rows else []
    speaking = [key for key in keys if key.endswith(SPEAKING)]
    if len({tuple(str(row.get(key)) for key in speaking) for row in rows}) < len(rows):
        speaking = keys
    return [", ".join(_label(key, row.get(key)) for key in speaking) for row in rows]


def _label(key: str, value: Any) -> str:
    return str(value) if key.endswith(SPEAKING) else f"{key} {value}"


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
    """Whether a logarithmic axis suits these numbers: positive, the largest at least 4 times the smallest."""
    numbers = list(values)
    return min(numbers) > 0 and max(numbers) >= 4 * min(numbers)
