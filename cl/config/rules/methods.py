"""Rules between the method and the loss, temperature, views and other needs of the method."""

import math

from cl.config.params import Params
from cl.losses import LossConfig
from cl.methods import MethodConfig
from cl.networks import patches
from cl.objective.traits import Trait, Traits
from cl.runtime.registry import kinds, module_of

TERMS: dict[Trait, str] = {
    "contrasts": "contrasts with negatives",
    "pairs": "pairs without negatives",
    "two views": "two views without negatives",
}
NEEDED: dict[Trait, str] = TERMS | {
    "normalizer": "a memory bank to estimate its normalizer",
    "several positives": "several positives per query (method.keys=rest)",
    "teacher": "the keys of a teacher or a target encoder against a queue of them",
}


def losses_for(method: type[MethodConfig], gives: Traits) -> list[str]:
    """The losses that fit a method with these traits."""
    return [kind for kind in kinds("losses") if _fit(gives, method.needs, module_of("losses", kind).Config)]


def _fit(gives: Traits, needs: Traits, loss: type[LossConfig]) -> bool:
    """Whether a method that gives and needs these traits fits a loss."""
    return loss.needs <= gives and needs <= loss.gives


def _loss_fits_method(params: Params) -> None:
    method, loss = params.method, params.loss
    several = method.positives(len(params.view_sizes)) > 1 or "positive" in params.dataset.value_columns
    traits: Traits = {"several positives"}
    gives = method.gives | traits if several else method.gives - traits
    if _fit(gives, method.needs, type(loss)):
        return
    fitting = " or ".join(losses_for(type(method), gives))
    lacking = [trait for trait in NEEDED if trait in loss.needs - gives]
    if not lacking:
        raise ValueError(
            f"method.kind={method.kind} needs a decoupled loss: the positive is among its negatives, so "
            f"loss={loss.kind} would count it twice; choose loss={fitting}"
        )
    found = " and ".join(TERMS[each] for each in TERMS if each in gives)
    methods = ((kind, module_of("methods", kind).Config) for kind in kinds("methods"))
    others = ", ".join(kind for kind, each in methods if _fit(each.gives, each.needs, type(loss)))
    raise ValueError(
        f"method.kind={method.kind} gives {found}, but loss={loss.kind} needs {NEEDED[lacking[0]]}; choose "
        f"loss={fitting}, or a method of the kinds {others}"
    )


def _columns_fit_method_and_loss(params: Params) -> None:
    columns = params.dataset.value_columns
    given = " and ".join(f"dataset.{role}={name}" for role, name in columns.items())
    for name, group, part in (("method", "methods", params.method), ("loss", "losses", params.loss)):
        if columns and "columns" not in part.gives:
            fitting = [kind for kind in kinds(group) if "columns" in module_of(group, kind).Config.gives]
            raise ValueError(
                f"{given} is not defined for {name}.kind={part.kind}; choose {name}={' or '.join(fitting)}"
            )


def _views_fit_method(params: Params) -> None:
    method, sizes = params.method, params.view_sizes
    large = method.large_views(len(sizes))
    found = ", ".join(f"{size} px" for size in sizes)
    counts = [(view.count, view.jigsaw is not None) for view in params.views.values()]
    if method.jigsaw and counts != [(large, False), (method.jigsaw, True)]:
        entries = ", ".join(f"{view.count} x {name}" for name, view in params.views.items())
        raise ValueError(
            f"method.kind={method.kind} takes {large} x the image, then {method.jigsaw} jigsaw patches, "
            f"found {entries}; choose views=pirl or views=pirl_small"
        )
    if (lacking := method.least_views - len(sizes)) > 0:
        name, view = next(iter(params.views.items()))
        raise ValueError(
            f"method.kind={method.kind} takes {method.least_views} views or more, found {len(sizes)}: "
            f"{found}; choose views.{name}.count={view.count + lacking}"
        )
    if len(sizes) == 2 and getattr(method, "targets", "") == "all":
        raise ValueError("method.targets=all needs three views or more, found 2; choose first_two")
    if len(set(sizes[:large])) > 1:
        raise ValueError(f"the first {large} views of method.kind={method.kind} need one size, found {found}")


def _patches_fit_method_and_views(params: Params) -> None:
    cut = params.patches
    if isinstance(cut, patches.Whole):
        return
    if "patches" not in params.method.gives:
        fitting = [kind for kind in kinds("methods") if "patches" in module_of("methods", kind).Config.gives]
        raise ValueError(
            f"method.kind={params.method.kind} does not take combinatorial patches, which need a predictor; "
            f"choose patches=whole or method={' or '.join(fitting)}"
        )
    if uneven := [size for size in params.view_sizes if size % cut.grid]:
        raise ValueError(
            f"views of {uneven[0]} px do not divide into {cut.grid} x {cut.grid} patches; choose a multiple "
            f"of {cut.grid}"
        )


def _settings_fit_method(params: Params) -> None:
    method, optim, temperature, name = params.method, params.optim, params.temperature, params.method.kind
    if "contrasts" in method.gives and temperature is None:
        raise ValueError(f"method.kind={name} needs a temperature, found null; 0.1 is common")
    if "contrasts" not in method.gives and temperature is not None:
        raise ValueError(f"temperature={temperature} has no effect with method.kind={name}; set null")
    if optim.predictor_lr == "fixed" and "predictor" not in method.gives:
        raise ValueError(
            f"optim.predictor_lr=fixed needs a predictor, which method.kind={name} lacks; choose scheduled"
        )
    if getattr(method, "shuffle", False) and params.bn_groups == 1:
        raise ValueError(
            f"method.shuffle=true shuffles between batch-norm groups, but bn_group={params.bn_group} makes "
            "one; choose a smaller bn_group or method.shuffle=false"
        )
    for key, analysis in params.analyses.items():
        if getattr(analysis, "needs_queue", False) and "queue" not in method.gives:
            raise ValueError(
                f"analyses.{key}.keys=queue needs a queue, which method.kind={name} lacks; choose keys=images"
            )
    epochs = math.inf if params.start_from else optim.epochs  # methods count the parent's epochs too
    try:
        for size in params.view_sizes:
            method.encoded_size(size)
        method.check(optim.batch_size, epochs)
    except ValueError as reason:
        raise ValueError(f"method.{reason}") from None


def _teacher_fits_method(params: Params) -> None:
    method, teacher, init = params.method, params.teacher, params.init
    if teacher is None:
        if method.kind == "distill":
            raise ValueError("method.kind=distill needs a teacher: set teacher, such as torchvision:resnet50")
        if "teacher" in [baseline.training for baseline in params.baselines.values()]:
            raise ValueError("baseline=teacher needs method=distill, which has one; leave out the baseline")
        return
    if method.kind != "distill":
        raise ValueError(
            f"teacher={teacher.name} needs method=distill, found {method.kind}; or set teacher=null"
        )
    if init and init.hash == teacher.hash:
        raise ValueError(f"init={init.name} and teacher={teacher.name} are the same weights; leave out init")


CHECKS = (
    _columns_fit_method_and_loss,
    _loss_fits_method,
    _views_fit_method,
    _patches_fit_method_and_views,
    _settings_fit_method,
    _teacher_fits_method,
)
