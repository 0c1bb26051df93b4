"""Rules between the parameters and the data: labels, number of images, image size."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from cl.config.params import Params, SupervisedTraining
from cl.data.order import Neighbours, Plan, plan_of
from cl.data.reader import Reader
from cl.runtime.registry import module_of
from cl.sources import Source, table

HARMFUL = 0.06  # for a trained backbone


def needing_labels(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Group and name of each entry that needs labels, if the data set is unlabelled; otherwise empty."""
    if values["dataset"].get("labels") != "none":
        return []
    entries = [
        ("evaluations", name)
        for name, entry in values["evaluations"].items()
        if module_of("evaluations", entry["kind"]).Config.needs_labels
    ]
    return entries + [
        ("baselines", name)
        for name, entry in values["baselines"].items()
        if isinstance(entry["training"], dict)
    ]


def needing_values(values: dict[str, Any]) -> list[str]:
    """The evaluations that need a column `positive` or `within`, if the data set has neither."""
    if values["dataset"].get("positive") or values["dataset"].get("within"):
        return []
    entries = values["evaluations"].items()
    return [name for name, entry in entries if module_of("evaluations", entry["kind"]).Config.needs_values]


def check_data(params: Params, train: Reader, val: Reader, processes: int = 1) -> None:
    """Raises ValueError if the data has too few images or labels for a stage; names all such parameters."""
    if problems := list(data_problems(params, train, val, processes)):
        raise ValueError("; ".join(problems))


def data_problems(params: Params, train: Reader, val: Reader, processes: int = 1) -> Iterator[str]:
    """The problems that `check_data` reports, one by one; `processes` will share a batch of pretraining."""
    order = len(train), params.optim.batch_size, params.seed
    checks: dict[str, Callable[[], Any]] = {
        "optim": lambda: Plan(*order, ranks=processes, neighbours=neighbours(params.dataset, train)),
        "optim.monitor": lambda: params.optim.monitor.check(train, val),
    }
    for group in ("evaluations", "analyses"):
        for name, entry in getattr(params, group).items():
            checks[f"{group}.{name}"] = partial(entry.check, train, val)
    for name, baseline in params.baselines.items():
        if isinstance(baseline.training, SupervisedTraining):
            sizes = len(train.labelled), baseline.training.optim.batch_size
            checks[f"baselines.{name}.training.optim"] = partial(plan_of, *sizes, params.seed)
    for place, check in checks.items():
        try:
            check()
        except ValueError as error:
            yield f"{place}: {error}"


def neighbours(dataset: Source, train: Reader) -> Neighbours | None:
    """Which images pretraining draws together."""
    if not isinstance(dataset, table.Config) or not dataset.value_columns:
        return None
    columns = train.values.get("positive"), train.values.get("within")
    if all(each is None for each in columns):  # only validation images have values
        return None
    return Neighbours(*columns, dataset.per_value, dataset.within_values)


def warnings(params: Params) -> Iterator[str]:
    """One sentence for each unusual combination of parameters."""
    largest, crop = max(params.view_sizes), params.dataset.crop
    if largest != crop:
        yield (
            f"pretraining sees views of {largest} px, evaluations use images of {crop} px: choose views=... "
            f"of {crop} px, or dataset.resize and dataset.crop of {largest}"
        )
    rate = params.optim.peak_lr * params.optim.backbone_lr_scale
    if params.init and params.hand_over == "trained" and params.optim.kind == "sgd" and rate >= HARMFUL:
        yield (
            f"init={params.init.name} with a learning rate of {rate:.4g}: rates from {HARMFUL} on may make "
            "an encoder worse (docs/results/adapt.md); choose recipe=own/adapt, or -S optim.base_lr=0.02"
        )
    if (optim := params.optim).warmup < optim.warmup_epochs:
        yield (
            f"optim.warmup_epochs={optim.warmup_epochs:g} is not less than optim.epochs={optim.epochs:g}: "
            f"it is lowered to {optim.warmup:g}"
        )


def check_labels(params: Params) -> None:
    """Raises ValueError if something needs labels that the data does not have."""
    if unneeded := needing_labels(params.model_dump()):
        group, name = unneeded[0]
        raise ValueError(f"{group}.{name} needs labels, but dataset.labels=none; remove it from params.yaml")
