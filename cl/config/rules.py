"""The rules that parameters keep, among themselves and with the data; errors say what to choose."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from cl.data.order import Plan
from cl.evaluations import plan_of
from cl.networks import patches
from cl.objective.terms import Contrast
from cl.runtime.registry import kinds, module_of

if TYPE_CHECKING:
    from cl.config.params import Params
    from cl.data.reader import Reader
    from cl.methods import MethodConfig
    from cl.training.optim import Config as Optim


def needing_labels(values: dict[str, Any]) -> list[tuple[str, str]]:
    """The groups and names of the entries that need labels, if the data set has none; else nothing."""
    if values["dataset"].get("labels") != "none":
        return []
    found = [
        (group, name)
        for group in ("evaluations", "analyses")
        for name, entry in values[group].items()
        if module_of(group, entry["kind"]).Config.needs_labels
    ]
    return found + [("baselines", name) for name, entry in values["baselines"].items() if entry["training"]]


def check_data(params: "Params", train: "Reader", val: "Reader") -> None:
    """Check that the data has enough images and labels for every stage, before any of them trains.

    Raises:
        ValueError: the message names every parameter that would make its stage fail.
    """
    if problems := list(data_problems(params, train, val)):
        raise ValueError("; ".join(problems))


def data_problems(params: "Params", train: "Reader", val: "Reader") -> Iterator[str]:
    """What `check_data` refuses, one by one."""
    checks: dict[str, Callable[[], Any]] = {
        "optim": lambda: Plan(len(train), params.optim.batch_size, params.seed),
        "optim.monitor": lambda: params.optim.monitor.check(train),
    }
    for group in ("evaluations", "analyses"):
        for name, entry in getattr(params, group).items():
            checks[f"{group}.{name}"] = partial(entry.check, train, val)
    for name, baseline in params.baselines.items():
        if baseline.training:
            batch_size = baseline.training.optim.batch_size
            checks[f"baselines.{name}.training.optim"] = partial(
                plan_of, len(train.labelled), batch_size, params.seed
            )
    for place, check in checks.items():
        try:
            check()
        except ValueError as error:
            yield f"{place}: {error}"


def warnings(params: "Params") -> Iterator[str]:
    """What is unusual about the parameters, a sentence each."""
    largest, crop = max(params.view_sizes), params.dataset.crop
    if largest != crop:
        yield (
            f"pretraining sees views of {largest} px, evaluations use images of {crop} px: choose views=... "
            f"of {crop} px, or dataset.resize and dataset.crop of {largest}"
        )
    for place, optim in _trainings(params):
        if optim.warmup < optim.warmup_epochs:
            yield (
                f"{place}.warmup_epochs={optim.warmup_epochs:g} is more than {place}.epochs={optim.epochs:g}"
                f": the warm-up takes half of them, {optim.warmup:g}"
            )


def _trainings(params: "Params") -> "Iterator[tuple[str, Optim]]":
    """The place and the optimizer's parameters of everything that is trained, except for detectors."""
    yield "optim", params.optim
    for name, evaluation in params.evaluations.items():
        if optim := getattr(evaluation, "optim", None):
            yield f"evaluations.{name}.optim", optim
    for name, baseline in params.baselines.items():
        if baseline.training:
            yield f"baselines.{name}.training.optim", baseline.training.optim


def _loss_fits_method(params: "Params") -> None:
    method, loss = params.method, params.loss
    if loss.takes is not method.gives:
        raise ValueError(
            f"method={method.kind} gives {method.gives.description}, but loss={loss.kind} takes "
            f"{loss.takes.description}; {_fitting_losses(params)}"
        )
    if method.only_decoupled and not loss.decoupled:
        raise ValueError(
            f"method={method.kind} compares with all its prototypes, the positive among them, which "
            f"loss={loss.kind} would count twice; {_fitting_losses(params)}"
        )
    if loss.needs_normalizer and not method.estimates_normalizer:
        banks = [kind for kind in kinds("methods") if module_of("methods", kind).Config.estimates_normalizer]
        raise ValueError(
            f"loss={loss.kind} needs a memory bank to estimate its normalizer, but method={method.kind} "
            f"has none; choose loss=sigmoid or method={' or '.join(banks)}"
        )
    if loss.needs_several_positives and method.positives(len(params.view_sizes)) == 1:
        configs = [module_of("methods", kind).Config for kind in kinds("methods")]
        ways = [config.several_positives for config in configs if config.several_positives]
        raise ValueError(
            f"loss={loss.kind} needs several positives per query, but method={method.kind} gives one; "
            f"choose {' or '.join(ways)}, or another loss: {_fitting_losses(params)}"
        )


def _fitting_losses(params: "Params") -> str:
    """A remedy: the losses that take what the method gives."""
    several = params.method.positives(len(params.view_sizes)) > 1
    fitting = [
        kind
        for kind in losses_for(type(params.method))
        if several or not module_of("losses", kind).Config.needs_several_positives
    ]
    return f"choose loss={' or '.join(fitting)}" if fitting else "no loss takes these: choose another method"


def losses_for(method: "type[MethodConfig]") -> list[str]:
    """The losses that take what a method gives, if it gives as many positives as they need."""
    configs = {kind: module_of("losses", kind).Config for kind in kinds("losses")}
    return [
        kind
        for kind, config in configs.items()
        if config.takes is method.gives
        and (config.decoupled or not method.only_decoupled)
        and (method.estimates_normalizer or not config.needs_normalizer)
    ]


def _temperature_fits_method(params: "Params") -> None:
    method, temperature = params.method, params.temperature
    if method.gives is Contrast and temperature is None:
        raise ValueError(f"method={method.kind} needs a temperature, found temperature=null; 0.1 is common")
    if method.gives is not Contrast and temperature is not None:
        raise ValueError(
            f"temperature={temperature} has no effect with method={method.kind}; choose temperature=null"
        )


def _views_fit_method(params: "Params") -> None:
    sizes = params.view_sizes
    large = params.method.large_views(len(sizes))
    found = ", ".join(f"{size} px" for size in sizes)
    if len(sizes) < params.method.least_views:
        raise ValueError(
            f"method={params.method.kind} takes {params.method.least_views} views or more, "
            f"found {len(sizes)}: {found}"
        )
    if len(set(sizes[:large])) > 1:
        raise ValueError(
            f"the first {large} views of method={params.method.kind} must be of one size, found {found}"
        )


def _patches_fit_method_and_views(params: "Params") -> None:
    cut = params.patches
    if isinstance(cut, patches.Whole):
        return
    if not params.method.takes_patches:
        fitting = [kind for kind in kinds("methods") if module_of("methods", kind).Config.takes_patches]
        raise ValueError(
            f"method={params.method.kind} does not take combinatorial patches, which need a predictor; "
            f"choose patches=whole or method={' or '.join(fitting)}"
        )
    if uneven := [size for size in params.view_sizes if size % cut.grid]:
        raise ValueError(
            f"views of {uneven[0]} px cannot be cut into a grid of {cut.grid} x {cut.grid} patches; "
            f"choose a size that is a multiple of {cut.grid}"
        )


def _one_start(params: "Params") -> None:
    if params.init and params.start_from:
        raise ValueError(
            f"init={params.init.name} gives a backbone to a new run, start_from={params.start_from.name} "
            "continues a run; choose one"
        )


def _data_has_the_labels(params: "Params") -> None:
    if unneeded := needing_labels(params.model_dump()):
        group, name = unneeded[0]
        raise ValueError(f"{group}.{name} needs labels, but dataset.labels=none; remove it from params.yaml")


def _method_fits_the_rest(params: "Params") -> None:
    params.method.check(params)


def _groups_fit_batch(params: "Params") -> None:
    group, batch = params.bn_group, params.optim.batch_size
    if group != "global" and (group < 2 or batch % group):
        raise ValueError(
            f"bn_group={group} must divide optim.batch_size={batch} into groups of two or more images; "
            "choose a divisor, or global"
        )


def _microbatches_hold_groups(params: "Params") -> None:
    microbatches, group, batch = params.optim.microbatches, params.bn_group, params.optim.batch_size
    if microbatches > 1 and (group == "global" or batch % (microbatches * group)):
        raise ValueError(
            f"optim.microbatches={microbatches} makes microbatches of size {batch / microbatches:g}, which "
            f"must be a multiple of bn_group={group}; choose another bn_group, or optim.microbatches=1"
        )


def _compiled_encoders_run_as_a_whole(params: "Params") -> None:
    cut = params.patches
    if params.optim.compile and isinstance(cut, patches.Combine) and cut.stage in patches.STITCHED:
        raise ValueError(
            f"optim.compile=true compiles the encoder as a whole, but patches.stage={cut.stage} runs it in "
            "parts; choose optim.compile=false"
        )


def _device_crops_the_views(params: "Params") -> None:
    for name, view in params.views.items():
        if view.jigsaw and params.optim.cropping == "device":
            raise ValueError(
                f"optim.cropping=device makes plain crops, but views.{name} has jigsaw patches, which only "
                "data workers cut; choose optim.cropping=workers"
            )


def _method_has_the_queue(params: "Params") -> None:
    analyses: dict[str, Any] = params.analyses
    for name, analysis in analyses.items():
        if analysis.needs_queue and not params.method.queues_negatives:
            raise ValueError(
                f"analyses.{name}.keys=queue needs a queue of negatives, but method={params.method.kind} has "
                "none; choose keys=images, or a method such as moco_v2"
            )


def _backbone_fits_the_rest(params: "Params") -> None:
    params.backbone.check(params)


def _baselines_name_what_exists(params: "Params") -> None:
    for name, baseline in params.baselines.items():
        evaluations, transfers = params.selected(baseline)
        for group, chosen, known in (
            ("evaluations", evaluations, params.evaluations),
            ("transfers", transfers, params.transfers),
        ):
            if unknown := [choice for choice in chosen if choice not in known]:
                choices = ", ".join(known) or "nothing"
                raise ValueError(
                    f"baselines.{name}.{group} names {unknown[0]}, but {group} has {choices}; use one or all"
                )


CHECKS = (
    _loss_fits_method,
    _temperature_fits_method,
    _views_fit_method,
    _patches_fit_method_and_views,
    _one_start,
    _data_has_the_labels,
    _method_fits_the_rest,
    _groups_fit_batch,
    _microbatches_hold_groups,
    _compiled_encoders_run_as_a_whole,
    _device_crops_the_views,
    _method_has_the_queue,
    _backbone_fits_the_rest,
    _baselines_name_what_exists,
)


def check(params: "Params") -> None:
    """Check the parameters against each other.

    Raises:
        ValueError: some do not fit together.
    """
    for rule in CHECKS:
        rule(params)
