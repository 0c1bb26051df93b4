"""Rules between the parameters and the data: labels, bands, number of images, image size."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from cl.config.params import Params, SupervisedTraining
from cl.data.order import Neighbours, Plan, plan_of
from cl.data.reader import Reader
from cl.data.views import View
from cl.networks.batch_norm import has_batch_norm
from cl.runtime.registry import module_of
from cl.sources import Source, table

HARMFUL = 0.06  # for a trained backbone


def lacking(values: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Group and name of each entry that needs what the data lacks, and what: labels or a column."""
    dataset = values["dataset"]
    unlabelled = dataset.get("labels") == "none"
    without_values = not (dataset.get("positive") or dataset.get("within"))
    for name, entry in values["evaluations"].items():
        needs = module_of("evaluations", entry["kind"]).Config
        if unlabelled and needs.needs_labels:
            yield "evaluations", name, "labels"
        elif without_values and needs.needs_values:
            yield "evaluations", name, "values"
    for name, entry in values["baselines"].items():
        if unlabelled and isinstance(entry["training"], dict):
            yield "baselines", name, "labels"


def check_data(params: Params, train: Reader, val: Reader, processes: int = 1) -> None:
    """Raises ValueError if the data has too few images or labels for a stage; names all such parameters."""
    if problems := list(data_problems(params, train, val, processes)):
        raise ValueError("; ".join(problems))


def data_problems(params: Params, train: Reader, val: Reader, processes: int = 1) -> Iterator[str]:
    """The problems that `check_data` reports, one by one; `processes` will share a batch of pretraining."""
    order = len(train), params.optim.batch_size, params.seed
    checks: dict[str, Callable[[], Any]] = {
        "optim": lambda: Plan(*order, ranks=processes, neighbours=neighbours(params.dataset, train)),
        "dataset": lambda: _some_have_negatives(params, train),
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


def without_negatives(params: Params, train: Reader) -> int:
    """How many training images have no negatives; 0 for a loss that needs none of other images."""
    never, method = train.never_negatives, module_of("methods", params.method.kind).Method
    if never is None or "contrasts" not in params.loss.needs or not method.negatives_are_images:
        return 0
    never = np.where(never < 0, -1 - np.arange(len(never)), never)
    within = np.unique(train.values.get("within", np.zeros(len(never))), return_inverse=True)[1]
    least, most = (np.full(len(never), bound) for bound in (never.max(), never.min()))
    np.minimum.at(least, within, never)
    np.maximum.at(most, within, never)
    return int((least == most)[within].sum())


def _some_have_negatives(params: Params, train: Reader) -> None:
    clusters = hasattr(params.method, "group")  # CLD's loss between clusters ignores groups
    if not clusters and without_negatives(params, train) == len(train):
        causes = [f"dataset.{role}={name}" for role, name in params.dataset.value_columns.items()]
        if params.dataset.tile:
            causes.append("dataset.tile (tiles of an image are a group)")
        raise ValueError(
            f"{' and '.join(['groups', *causes])} leave all training images without negatives; give images "
            "of more groups, choose other columns (one such as source is of groups unless renamed), or a "
            "method without negatives, such as method=byol"
        )


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
    network = params.backbone.outline() if params.init and params.optim.kind == "sgd" else None
    if params.init and network is not None and not has_batch_norm(network):
        yield (
            f"init={params.init.name} has no batch norm: SGD harmed such a network, AdamW improved it "
            "(docs/results/adapt.md); choose -S optim=adamw -S optim.base_lr=2e-4 -S 'arms=[]'"
        )
    elif params.init and params.hand_over == "trained" and params.optim.kind == "sgd" and rate >= HARMFUL:
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
    for group, name, what in lacking(params.model_dump()):
        if what == "labels":
            raise ValueError(
                f"{group}.{name} needs labels, but dataset.labels=none; remove it from params.yaml"
            )


def check_bands(params: Params) -> None:
    """Raises ValueError if bands and other parameters exclude each other."""
    channels = params.dataset.channels
    if channels is None:
        for place, view in _views(params):
            if view.bands:
                raise ValueError(
                    f"{place}.bands changes bands, but dataset.channels=null reads images as RGB; choose "
                    "dataset.channels=all or a list of bands, or other views"
                )
        if params.dataset.show:
            raise ValueError(
                f"dataset.show={params.dataset.show} has no effect with dataset.channels=null; remove it"
            )
        return
    for place, remedy in _in_need_of_rgb(params):
        raise ValueError(f"{place} needs RGB, but dataset.channels={channels} reads bands; choose {remedy}")


def _in_need_of_rgb(params: Params) -> Iterator[tuple[str, str]]:
    """Each parameter that cannot work with bands, and a remedy."""
    if params.teacher:
        yield f"teacher={params.teacher.name}", "teacher=null and another method, such as method=simclr"
    if getattr(params.backbone, "streams", None):
        yield "backbone.streams", "a backbone without streams"
    if params.optim.cropping == "device":
        yield "optim.cropping=device", "optim.cropping=workers"
    for name in params.transfers:
        yield f"transfers.{name}", "transfer=[]"
    for name, baseline in params.baselines.items():
        if baseline.weights:
            yield f"baselines.{name}.weights={baseline.weights}", "baseline=[random]"
    for place, view in _views(params):
        chances = {"jitter.p": view.jitter.p, "grayscale": view.grayscale, "solarize": view.solarize}
        chances |= {"photometric": view.photometric or 0, "jigsaw": float(view.jigsaw is not None)}
        if needing := [name for name, chance in chances.items() if chance]:
            yield f"{place}.{needing[0]}", "recipe=own/bands, or views=bands and views without colour changes"


def _views(params: Params) -> Iterator[tuple[str, View]]:
    """All views, with their places in the parameters."""
    groups = {"views": params.views}
    for name, entry in params.evaluations.items():
        groups[f"evaluations.{name}.views"] = getattr(entry, "views", {})
    for name, baseline in params.baselines.items():
        if isinstance(baseline.training, SupervisedTraining):
            groups[f"baselines.{name}.training.views"] = baseline.training.views
    for group, views in groups.items():
        for name, view in views.items():
            yield f"{group}.{name}", view
