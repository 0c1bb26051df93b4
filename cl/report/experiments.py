"""Finished experiments: the parameters that their results depend on, and means over seeds."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cl.report.charts import Chart
from cl.runtime.metric_info import Measurement
from cl.statistics import Estimate, estimate

T = TypeVar("T")
SUPERVISED = ("backbone", "dataset")
OBJECTIVE = ("loss", "method", "patches", "teacher", "temperature", "views")
TRAINING = ("arms", "bn_group", "hand_over", "init", "optim", "start_from", "ungrouped")
PRETRAINING = sorted((*SUPERVISED, *OBJECTIVE, *TRAINING))
GROUPS = {  # stages, and the groups of parameters that list what they measure
    "evaluate": "evaluations",
    "transfer": "transfers",
    "analyze": "analyses",
}
# These change how a result is computed, or which others are computed, but not its meaning.
IRRELEVANT = (
    "backbone.checkpointing",
    "optim.monitor",
    "optim.microbatches",
    "optim.compile",
    "optim.cropping",
    "dataset.scenes",
    "dataset.shard_images",
    "dataset.verify",
)
SAME: list[tuple[str, Any]] = [
    ("dataset.encode", "copy"),  # the same pixels
    ("dataset.encode", "raw"),
    ("arms", []),  # as in older experiments, which lack the parameter
    ("dataset.per_value", 2),
    ("dataset.within_values", 2),
    ("hand_over", "trained"),
    ("loss.positives", "each"),
    ("ungrouped", False),
]


@dataclass(frozen=True)
class Experiment:
    """Parameters and results of one experiment.

    revision: its commit; empty for the workspace.
    metrics: all numbers by DVC's names.
    provenance: by result, such as `evaluate/knn`.
    measurements: the numbers of evaluations, transfers and analyses.
    charts: by analysis.
    epochs: the rows of pretraining's log.
    problems: why results were left out: they do not belong to these parameters.
    """

    name: str
    revision: str
    params: dict[str, Any]
    metrics: dict[str, float]
    provenance: dict[str, dict[str, Any]]
    measurements: list[Measurement] = field(default_factory=list)
    charts: dict[str, list[Chart]] = field(default_factory=dict)
    epochs: list[dict[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def seed(self) -> int:
        """The seed of pretraining."""
        return int(self.params["seed"])

    @property
    def data(self) -> str | None:
        """The hash of the prepared data's manifest."""
        return self.provenance.get("prepare", {}).get("data_manifest_sha256")

    def data_behind(self, measured: Measurement) -> list[str | None]:
        """The hashes of the data behind a number: the prepared data's and a transfer's own."""
        transfer = self.provenance.get(f"{measured.stage}/{measured.entry}", {})
        return [self.data, transfer.get("data_sha256")]

    @property
    def images(self) -> tuple[int, ...]:
        """The numbers of training and validation images, including unreadable ones."""
        return tuple(
            int(self.metrics.get(f"{split}_images", 0) + self.metrics.get(f"{split}_skipped", 0))
            for split in ("train", "val")
        )

    def find(self, metric: str, baseline: str | None = None) -> Measurement | None:
        """The measurement of this name for the pretrained encoder or a baseline, if there is one."""
        named = (each for each in self.measurements if each.baseline == baseline and each.name == metric)
        return next(named, None)


def result_names(params: dict[str, Any]) -> list[str]:
    """The names of an experiment's results, such as `evaluate/knn`."""
    groups = GROUPS | {"baseline": "baselines"}
    entries = [f"{stage}/{name}" for stage, group in groups.items() for name in params.get(group) or {}]
    return ["prepare", "pretrain", *entries]


def changed_params(provenance: dict[str, Any], params: dict[str, Any]) -> list[str]:
    """The parameters whose values differ from those recorded with a result."""
    recorded = provenance.get("parameters", {})
    return [key for key, value in recorded.items() if value_at(params, key) != value]


def value_at(values: Any, path: str) -> Any:
    """The value at a dotted path; None if the path does not exist."""
    for key in path.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return values


def flatten(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths and values of a nested mapping; a list is a value."""
    if not isinstance(values, dict):
        yield prefix, values
        return
    for key, value in values.items():
        yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))


def settings(params: dict[str, Any], groups: Iterable[str] = PRETRAINING) -> dict[str, Any]:
    """The parameters that results depend on, by dotted path, without nulls and the seed."""
    chosen = flatten({group: params.get(group) for group in groups})
    irrelevant = tuple(f"{path}." for path in IRRELEVANT)
    return {
        key: value
        for key, value in chosen
        if value is not None and not f"{key}.".startswith(irrelevant) and (key, value) not in SAME
    }


def dependencies(measured: Measurement, params: dict[str, Any]) -> dict[str, Any] | None:
    """All parameters that a measurement depends on, except seeds; None if `params` do not request it.

    A baseline depends on its own training instead of the method's.
    """
    path, baseline = f"{GROUPS[measured.stage]}.{measured.entry}", measured.baseline
    config = value_at(params, path)
    if config is None:
        return None
    values = dict(flatten(config, path)).items()
    protocol = {key: value for key, value in values if value is not None and not key.endswith(".seeds")}
    if baseline is None:
        return settings(params) | protocol
    training, weights = (value_at(params, f"baselines.{baseline}.{key}") for key in ("training", "weights"))
    groups = (*SUPERVISED, "teacher") if training == "teacher" else SUPERVISED
    own = dict(flatten(training, baseline)) | {"weights": weights}
    return settings(params, groups) | protocol | own


def judged_together(own: dict[str, Any], experiments: Iterable[Experiment]) -> str:
    """How many runs were judged on the same held-out images as the pretraining `own`; empty for only one."""

    def judged_on(pretraining: dict[str, Any]) -> str | None:
        is_judged = pretraining.get("adaptation", {}).get("rows")
        return pretraining["data_manifest_sha256"] if is_judged else None

    all_runs = [own, *(each.provenance.get("pretrain", {}) for each in experiments)]
    runs = {each["run_key"] for each in all_runs if judged_on(each) == judged_on(own) is not None}
    if len(runs) < 2:
        return ""
    paid = own["adaptation"]["paid_runs"]
    more = "" if len(runs) < paid else "; hold out other images for further ones"
    return f"{len(runs)} runs were judged on these held-out images; the verdict pays for {paid}{more}"


def is_same_measurement(measured: Measurement, expected: dict[str, Any], params: dict[str, Any]) -> bool:
    """Whether both measure the same: all but seed and precision must be equal."""
    wanted = dependencies(measured, expected)
    return wanted is not None and wanted == dependencies(measured, params)


def mean_over_seeds(
    experiments: Iterable[Experiment], metric: str, baseline: str | None = None
) -> Estimate | None:
    """The mean of a metric over experiments that differ only in the seed; None if none has the metric.

    Ignores repeated seeds, and experiments whose data differ from the first one's. The standard deviation of
    a single experiment is over its evaluation's seeds.
    """
    having = [(each, found) for each in experiments if (found := each.find(metric, baseline))]
    by_seed: dict[int, tuple[Experiment, Measurement]] = {}
    for experiment, found in having:
        if experiment.data_behind(found) == having[0][0].data_behind(having[0][1]):
            by_seed.setdefault(experiment.seed, (experiment, found))
    if not by_seed:
        return None
    averaged, measured = zip(*by_seed.values(), strict=True)
    return estimate(measured, [experiment.name for experiment in averaged])


def distinct(experiments: list[Experiment]) -> list[Experiment]:
    """The experiments without those that are part of another, such as a workspace with fewer results."""
    kept: list[Experiment] = []
    for experiment in experiments:
        if not any(_is_part_of(experiment, other) for other in kept):
            kept = [*(other for other in kept if not _is_part_of(other, experiment)), experiment]
    return kept


def _is_part_of(experiment: Experiment, other: Experiment) -> bool:
    """Whether the other has the same parameters and all of the experiment's metrics."""
    return experiment.params == other.params and experiment.metrics.items() <= other.metrics.items()


def grouped(items: Iterable[T], key: Callable[[T], Any]) -> list[list[T]]:
    """Groups of items with equal keys, in order of first appearance; keys must be JSON values."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(json.dumps(key(item), sort_keys=True), []).append(item)
    return list(groups.values())


def joint_name(group: list[Experiment]) -> str:
    """The name of the first, and how many more there are."""
    return group[0].name if len(group) == 1 else f"{group[0].name} and {len(group) - 1} more"


def varying_params(experiments: list[Experiment]) -> list[str]:
    """The parameters of pretraining and the seed, if they differ; those that follow from a kind come last."""
    rows = [{"seed": experiment.seed} | settings(experiment.params) for experiment in experiments]
    first = ("optim", "loss", "temperature", "seed")
    return sorted(
        varying_keys(rows),
        key=lambda key: not (key.endswith((".kind", "dataset.name")) or key.split(".")[0] in first),
    )


def varying_keys(rows: list[dict[str, Any]]) -> list[str]:
    """The keys whose values differ between rows; a missing value counts as None."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if any(row.get(key) != rows[0].get(key) for row in rows)]


def headline_metrics(experiments: list[Experiment]) -> list[str]:
    """The first metrics of each evaluation and transfer: experiments may measure different ones."""
    found: dict[tuple[str, int], str] = {}
    for number, experiment in enumerate(experiments):
        for measured in experiment.measurements:
            if measured.baseline is None and measured.stage != "analyze":
                found.setdefault((measured.entry, number), measured.name)
    return list(dict.fromkeys(found.values()))
