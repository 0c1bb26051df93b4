"""Finished experiments, beside each other: what they differ in, seeds together, and which of them answers a paper's number."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, NamedTuple

from cl.charts import Chart

PRETRAINING = (
    "backbone",
    "bn_group",
    "dataset",
    "loss",
    "method",
    "optim",
    "patches",
    "temperature",
    "views",
)
SUPERVISED = ("backbone", "dataset")
# They change how a result is computed, or what else is, but not what it means.
FREE = (
    "optim.monitor",
    "optim.microbatches",
    "optim.compile",
    "dataset.scenes",
    "dataset.shard_images",
    "dataset.verify",
)
OF_ENTRIES = ("seeds", "memory")


@dataclass(frozen=True)
class Experiment:
    """Parameters and results of one experiment.

    revision: the commit that holds it; empty for the workspace.
    metrics: numbers by name; provenance: by result, such as `evaluate/knn`; charts: by analysis.
    problems: results that are not those of these parameters, and were left out.
    """

    name: str
    revision: str
    params: dict[str, Any]
    metrics: dict[str, float]
    provenance: dict[str, dict[str, Any]]
    charts: dict[str, list[Chart]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def seed(self) -> int:
        """That of pretraining."""
        return int(self.params["seed"])

    @property
    def data(self) -> str | None:
        """The hash of the prepared data's manifest."""
        return self.provenance.get("prepare", {}).get("data_manifest_sha256")

    @property
    def images(self) -> tuple[int, ...]:
        """How many training and validation images there were, unreadable ones too."""
        numbers = [
            self.metrics.get(f"{split}_images", 0) + self.metrics.get(f"{split}_skipped", 0)
            for split in ("train", "val")
        ]
        return tuple(int(number) for number in numbers)


class Measured(NamedTuple):
    """A mean over `n` seeds with its standard deviation, and the names of the experiments; no deviation of a single one."""

    mean: float
    sd: float | None
    n: int
    names: list[str]


def results(params: dict[str, Any]) -> list[str]:
    """The names of the results that an experiment with these parameters has."""
    groups = {
        "evaluate": "evaluations",
        "transfer": "transfers",
        "analyze": "analyses",
        "baseline": "baselines",
    }
    return [
        "prepare",
        "pretrain",
        *(f"{stage}/{name}" for stage, group in groups.items() for name in params.get(group) or {}),
    ]


def outdated(provenance: dict[str, Any], params: dict[str, Any]) -> list[str]:
    """The parameters that a result was made with, and that are others now."""
    return [key for key, value in provenance.get("parameters", {}).items() if at(params, key) != value]


def at(values: Any, path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    for key in path.split("."):
        if isinstance(values, list) and key.isdecimal() and int(key) < len(values):
            values = values[int(key)]
        else:
            values = values.get(key) if isinstance(values, dict) else None
    return values


def flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths and values of a nested mapping; lists are values."""
    if not isinstance(values, dict):
        yield prefix, values
        return
    for key, value in values.items():
        yield from flat(value, f"{prefix}.{key}" if prefix else str(key))


def settings(params: dict[str, Any], groups: Iterable[str] = PRETRAINING) -> dict[str, Any]:
    """What of the parameters a result depends on, by dotted path, without the seed, what is free and what is null."""
    chosen = flat({group: params.get(group) for group in groups})
    return {
        key: value
        for key, value in chosen
        if value is not None and not any(key == free or key.startswith(f"{free}.") for free in FREE)
    }


def entry_of(metric: str, params: dict[str, Any]) -> tuple[str, str] | None:
    """The group and name of the evaluation or transfer that a metric belongs to: the longest name that it begins with."""
    known = [(group, name) for group in ("evaluations", "transfers") for name in params.get(group) or {}]
    fitting = [(group, name) for group, name in known if metric.startswith(f"{name}_")]
    return max(fitting, key=lambda found: len(found[1]), default=None)


def depends(metric: str, params: dict[str, Any], baseline: str | None = None) -> dict[str, Any] | None:
    """All parameters that a metric depends on but the seeds; None where these parameters do not measure it.

    A baseline depends on its own training instead of the method's.
    """
    entry = entry_of(metric.removeprefix(f"{baseline}_") if baseline else metric, params)
    if entry is None:
        return None
    protocol = {
        key: value for key, value in flat(at(params, ".".join(entry)), ".".join(entry)) if value is not None
    }
    own = {key: value for key, value in protocol.items() if key.rsplit(".", 1)[1] not in OF_ENTRIES}
    if baseline is None:
        return settings(params) | own
    return (
        settings(params, SUPERVISED)
        | own
        | dict(flat(at(params, f"baselines.{baseline}.training"), baseline))
    )


def same(metric: str, expected: dict[str, Any], params: dict[str, Any], baseline: str | None = None) -> bool:
    """Whether a metric of an experiment with `params` is that of one with the `expected` parameters, whatever the seed.

    Data set, encoder, objective, training, protocol and engine must be equal; precision may be another.
    """
    wanted = depends(metric, expected, baseline)
    return wanted is not None and wanted == depends(metric, params, baseline)


def measured(experiments: Iterable[Experiment], metric: str, baseline: str | None = None) -> Measured | None:
    """The mean of a metric over the seeds of experiments that differ in nothing else; of a seed, the first found counts.

    All have the data of the first. An evaluation that was itself repeated over seeds brings its own deviation, where there
    is only one experiment.
    """
    with_it = [experiment for experiment in experiments if metric in experiment.metrics]
    by_seed: dict[int, Experiment] = {}
    for experiment in with_it:
        if experiment.data == with_it[0].data:
            by_seed.setdefault(experiment.seed, experiment)
    if not by_seed:
        return None
    values = [experiment.metrics[metric] for experiment in by_seed.values()]
    names = [experiment.name for experiment in by_seed.values()]
    if len(values) > 1:
        return Measured(fmean(values), stdev(values), len(values), names)
    (only,) = by_seed.values()
    entry = entry_of(metric.removeprefix(f"{baseline}_") if baseline else metric, only.params)
    prefix = f"{baseline}_" if baseline else ""
    repeats = only.metrics.get(f"{prefix}{entry[1]}_n", 1) if entry else 1
    return Measured(values[0], only.metrics.get(f"{metric}_sd"), int(repeats), names)


def distinct(experiments: list[Experiment]) -> list[Experiment]:
    """Each once: of two with equal parameters and numbers, as a workspace and the experiment it was made by, the first."""
    kept: list[Experiment] = []
    for experiment in experiments:
        if not any(
            experiment.params == other.params and experiment.metrics == other.metrics for other in kept
        ):
            kept.append(experiment)
    return kept


def differing(experiments: list[Experiment]) -> list[str]:
    """The dotted parameters of pretraining that are not the same in all, the seed among them; what is told by a kind last."""
    found = varying([settings(experiment.params) | {"seed": experiment.seed} for experiment in experiments])
    return sorted(
        found,
        key=lambda key: (
            not (key.endswith(".kind") or key.split(".")[0] in ("optim", "loss", "temperature", "seed"))
        ),
    )


def varying(rows: list[dict[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all rows; a missing one is None."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if any(row.get(key) != rows[0].get(key) for row in rows)]


def sweeps(experiments: list[Experiment]) -> Iterator[Chart]:
    """Charts of every number that was varied: a metric by it, mean and deviation over seeds, a line for each other setting.

    A line joins experiments on the same data, with the same evaluation, that differ in this number alone.
    """
    for metric in headlines(experiments):
        having = [experiment for experiment in experiments if metric in experiment.metrics]
        rows = [{"data": e.data, **(depends(metric, e.params) or {})} for e in having]
        for x in varying(rows):
            swept = _lines(x, list(zip(rows, having, strict=True)))
            if swept:
                yield _swept(
                    x, metric, dict(zip(labels([line[0][0] for line in swept], x), swept, strict=True))
                )


Line = list[tuple[dict[str, Any], Experiment]]


def _lines(x: str, rows: Line) -> list[Line]:
    """The experiments that differ in the number x alone, where it has two values or more."""
    lines: dict[str, Line] = {}
    for row, experiment in rows:
        if _is_number(row.get(x)):
            rest = repr(sorted((key, repr(value)) for key, value in row.items() if key != x))
            lines.setdefault(rest, []).append((row, experiment))
    return [line for line in lines.values() if len({row[x] for row, _ in line}) > 1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def labels(rows: list[dict[str, Any]], but: str = "") -> list[str]:
    """What tells the rows apart: their kinds, or failing that all they differ in."""
    keys = [key for key in varying(rows) if key != but] if rows else []
    kinds = [key for key in keys if key.endswith(".kind")]
    if len({tuple(str(row.get(key)) for key in kinds) for row in rows}) < len(rows):
        kinds = keys
    return [
        ", ".join(str(row.get(key)) if key.endswith(".kind") else f"{key} {row.get(key)}" for key in kinds)
        for row in rows
    ]


def headlines(experiments: list[Experiment]) -> list[str]:
    """The first number of every evaluation and transfer that any of them has."""
    found: dict[str, str] = {}
    for experiment in experiments:
        for metric in experiment.metrics:
            if (entry := entry_of(metric, experiment.params)) and metric.endswith(("_top1", "_ap50", "_ap")):
                found.setdefault(entry[1], metric)
    return list(dict.fromkeys(found.values()))


def _swept(x: str, metric: str, lines: dict[str, Line]) -> Chart:
    wide = spread(row[x] for line in lines.values() for row, _ in line)
    chart = Chart(f"{metric}-{x.replace('.', '-')}", f"{metric} by {x}", x, f"{metric}, %", log=wide)
    for label, line in lines.items():
        for value in sorted({row[x] for row, _ in line}):
            if found := measured([experiment for row, experiment in line if row[x] == value], metric):
                chart.add(label or metric, value, found.mean, found.sd)
    return chart


def spread(values: Iterable[float]) -> bool:
    """Whether a logarithmic axis shows these numbers better."""
    least, *_, most = sorted([*values] * 2)
    return least > 0 and most >= 4 * least
