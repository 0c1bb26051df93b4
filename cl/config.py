"""The parameters of one experiment, checked as a whole before anything is read or written."""

import importlib
import pkgutil
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator
from ruamel.yaml import YAML, YAMLError

from cl.data.views import View
from cl.detection.config import Config as Transfer
from cl.losses import LossConfig
from cl.methods import MethodConfig
from cl.networks import backbones, patches
from cl.pretraining import monitor
from cl.runtime.base_config import BaseConfig, Seed
from cl.runtime.machine import Precision
from cl.sources import Source
from cl.training import optim


def kinds(package: str) -> list[str]:
    """The modules of `cl.<package>`: each is a kind, and its file all it takes to add one; `_helpers` are none."""
    modules = pkgutil.iter_modules(importlib.import_module(f"cl.{package}").__path__)
    return sorted(module.name for module in modules if not module.name.startswith("_"))


def module_of(package: str, kind: str):  # type: ignore[no-untyped-def]
    """The module `cl.<package>.<kind>`."""
    return importlib.import_module(f"cl.{package}.{kind}")


def _config_of(package: str) -> BeforeValidator:
    """Turns a mapping with the key `kind` into the `Config` of that module."""

    def parse(value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind not in kinds(package):
            raise ValueError(f"kind={kind} is unknown; choose one of {', '.join(kinds(package))}")
        return module_of(package, kind).Config.model_validate(value)

    return BeforeValidator(parse)


def _parse_patches(value: Any) -> Any:
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in patches.KINDS:
        raise ValueError(f"kind={kind} is unknown; choose one of {', '.join(patches.KINDS)}")
    return patches.KINDS[kind].model_validate(value)


class PretrainingOptim(optim.Config):
    """The optimizer of pretraining, how its steps are computed, and what is watched meanwhile.

    predictor_lr: `fixed` keeps the predictor at the largest learning rate throughout (SimSiam, Fast-MoCo).
    microbatches: pieces in which a batch is encoded, each once more in the backward pass, for batches whose activations do not
        fit in memory; the gradient is that of the whole batch.
    compile: the encoder by torch.compile, which takes minutes to start.
    """

    predictor_lr: Literal["scheduled", "fixed"]
    microbatches: int = Field(gt=0)
    compile: bool
    monitor: monitor.Config


class SupervisedTraining(BaseConfig):
    """How a supervised baseline is trained."""

    optim: optim.Config
    views: dict[str, View] = Field(min_length=1, max_length=1)


class Baseline(BaseConfig):
    """An encoder to compare with: trained with labels, or not at all (`training: null`)."""

    training: SupervisedTraining | None
    evaluations: Literal["all"] | list[str]
    transfers: Literal["all"] | list[str]


class Params(BaseConfig):
    """`params.yaml`."""

    seed: Seed
    recipe: str | None
    dataset: Annotated[SerializeAsAny[Source], _config_of("sources")]
    views: dict[str, View] = Field(min_length=1)
    patches: Annotated[patches.Config, BeforeValidator(_parse_patches)]
    backbone: backbones.Config
    method: Annotated[SerializeAsAny[MethodConfig], _config_of("methods")]
    temperature: float | None = Field(gt=0)
    loss: Annotated[SerializeAsAny[LossConfig], _config_of("losses")]
    optim: PretrainingOptim
    precision: Precision
    deterministic: bool
    bn_group: Literal["global"] | int = Field(description="images that share batch statistics")
    evaluations: dict[str, Annotated[SerializeAsAny[BaseModel], _config_of("evaluations")]]
    transfers: dict[str, Transfer]
    analyses: dict[str, Annotated[SerializeAsAny[BaseModel], _config_of("analyses")]]
    baselines: dict[str, Baseline]

    @property
    def bn_groups(self) -> int:
        """Groups of batch norm in a batch."""
        return 1 if self.bn_group == "global" else self.optim.batch_size // self.bn_group

    def selected(self, baseline: Baseline) -> tuple[list[str], list[str]]:
        """The names of the evaluations and transfers that a baseline goes through."""
        evaluations = list(self.evaluations) if baseline.evaluations == "all" else baseline.evaluations
        return evaluations, list(self.transfers) if baseline.transfers == "all" else baseline.transfers

    @property
    def view_sizes(self) -> list[int]:
        """The side of every view of an image, pixels."""
        return [view.size for view in self.views.values() for _ in range(view.count)]

    @model_validator(mode="after")
    def _fit_together(self) -> "Params":
        for check in CHECKS:
            check(self)
        return self


def _loss_fits_method(params: Params) -> None:
    method, loss = params.method, params.loss
    several = method.positives(len(params.view_sizes)) > 1
    known = {kind: module_of("losses", kind).Config for kind in kinds("losses")}
    fitting = [
        kind
        for kind, config in known.items()
        if config.needs_negatives == method.gives_negatives
        and (several or not config.needs_several_positives)
    ]
    names = f"method={method.kind}", f"loss={loss.kind}", f"choose loss={' or '.join(fitting)}"
    if loss.needs_negatives and not method.gives_negatives:
        raise ValueError(f"{names[0]} gives no negatives, which {names[1]} needs; {names[2]}")
    if method.gives_negatives and not loss.needs_negatives:
        remedy = (
            "method=byol or simsiam is meant for it"
            if method.takes_patches
            else "without a predictor it would collapse"
        )
        raise ValueError(
            f"{names[1]} does not look at the negatives that {names[0]} gives; {remedy}; {names[2]}"
        )
    if method.gives_negatives and params.temperature is None:
        raise ValueError(f"temperature=null, but {names[0]} needs one; 0.1 is customary")
    if not method.gives_negatives and params.temperature is not None:
        raise ValueError(
            f"temperature={params.temperature} has no effect with {names[0]}; choose temperature=null"
        )
    if loss.needs_several_positives and not several:
        raise ValueError(
            f"{names[1]} needs the covariance of several keys an image, of which {names[0]} gives one; "
            "choose method=moco_v2_keys and three views or more"
        )


def _views_fit_method(params: Params) -> None:
    sizes = params.view_sizes
    large = params.method.large_views(len(sizes))
    found = ", ".join(f"{size} px" for size in sizes)
    if len(sizes) < 2:
        raise ValueError(f"method={params.method.kind} takes two views or more, found {len(sizes)}: {found}")
    if len(set(sizes[:large])) > 1:
        why = " (with keys=rest all views after the first are keys)" if large > 2 else ""
        raise ValueError(
            f"method={params.method.kind} takes {large} views of one size first{why}, found {found}"
        )


def _patches_fit_method_and_views(params: Params) -> None:
    cut = params.patches
    if isinstance(cut, patches.Whole):
        return
    if not params.method.takes_patches:
        fitting = [kind for kind in kinds("methods") if module_of("methods", kind).Config.takes_patches]
        raise ValueError(
            f"method={params.method.kind} takes no combinatorial patches, which need a predictor; choose patches=whole "
            f"or method={' or '.join(fitting)}"
        )
    if uneven := [size for size in params.view_sizes if size % cut.grid]:
        raise ValueError(
            f"views of {uneven[0]} px cannot be cut into a grid of {cut.grid} x {cut.grid} patches"
        )


def _negatives_are_there(params: Params) -> None:
    negatives, candidates = (
        getattr(params.method, "negatives", None),
        params.method.candidates(params.optim.batch_size),
    )
    if negatives is not None and candidates is not None and negatives > candidates:
        raise ValueError(
            f"method.negatives={negatives}, but optim.batch_size={params.optim.batch_size} has {candidates} for a query; "
            "choose null for all"
        )


def _predictor_is_there(params: Params) -> None:
    predictor = getattr(params.method, "predictor", None)
    if params.optim.predictor_lr == "fixed" and predictor is None:
        raise ValueError(
            f"optim.predictor_lr=fixed, but method={params.method.kind} has no predictor; choose scheduled"
        )
    if predictor is not None and predictor.out != params.method.projector.out:
        raise ValueError(
            f"method.predictor.out={predictor.out} differs from method.projector.out={params.method.projector.out}, "
            "but predictions are compared with projections"
        )


def _groups_fit_batch(params: Params) -> None:
    group, batch = params.bn_group, params.optim.batch_size
    if group != "global" and (group < 2 or batch % group):
        raise ValueError(
            f"bn_group={group} does not divide optim.batch_size={batch} into groups of two or more; or choose global"
        )


def _chunks_hold_groups(params: Params) -> None:
    microbatches, group, batch = params.optim.microbatches, params.bn_group, params.optim.batch_size
    if microbatches > 1 and (group == "global" or batch % (microbatches * group)):
        raise ValueError(
            f"optim.microbatches={microbatches} needs groups of batch norm that fit in a microbatch, found bn_group={group} and microbatches of "
            f"{batch / microbatches:g} images; choose a bn_group that divides them, or optim.microbatches=1"
        )


def _compiled_networks_are_called_as_a_whole(params: Params) -> None:
    if (
        params.optim.compile
        and isinstance(params.patches, patches.Combine)
        and params.patches.stage in patches.STITCHED
    ):
        raise ValueError(
            f"optim.compile=true compiles the encoder as a whole, which patches.stage={params.patches.stage} takes apart; "
            "choose optim.compile=false"
        )


def _shuffle_has_groups(params: Params) -> None:
    if getattr(params.method, "shuffle", False) and params.bn_groups == 1:
        raise ValueError(
            f"method.shuffle=true shuffles between groups of batch norm, but bn_group={params.bn_group} makes one group; "
            "choose a smaller bn_group or method.shuffle=false"
        )


def _detectron2_holds_the_backbone(params: Params) -> None:
    backbone = params.backbone
    for name, transfer in params.transfers.items():
        if transfer.engine == "detectron2" and (backbone.width, backbone.stem) != (1, "imagenet"):
            raise ValueError(
                f"transfers.{name}.engine=detectron2 holds a ResNet with a 7x7 stem and 64 channels, found backbone.stem="
                f"{backbone.stem} and backbone.width={backbone.width}; choose engine=torchvision or backbone=resnet50"
            )


def _baselines_name_what_exists(params: Params) -> None:
    for name, baseline in params.baselines.items():
        evaluations, transfers = params.selected(baseline)
        for group, chosen, known in (
            ("evaluations", evaluations, params.evaluations),
            ("transfers", transfers, params.transfers),
        ):
            if unknown := [c for c in chosen if c not in known]:
                choices = ", ".join(known) or "nothing"
                raise ValueError(
                    f"baselines.{name}.{group} names {unknown[0]}, but {group} has {choices}; or choose all"
                )


CHECKS = (
    _loss_fits_method,
    _views_fit_method,
    _patches_fit_method_and_views,
    _negatives_are_there,
    _predictor_is_there,
    _groups_fit_batch,
    _chunks_hold_groups,
    _compiled_networks_are_called_as_a_whole,
    _shuffle_has_groups,
    _detectron2_holds_the_backbone,
    _baselines_name_what_exists,
)


def read(path: Path) -> dict[str, Any]:
    """A parameter file by the rules of YAML 1.2, as DVC reads it: `1e-3` is a number."""
    return parse(path.read_text(), str(path))


def parse(text: str, name: str) -> dict[str, Any]:
    """The same of a text, which errors call `name`."""
    try:
        values = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(f"{name} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{name} holds no keys and values, but {str(values)[:40]!r}")
    return values


def load(path: Path) -> Params:
    """The checked parameters of a file.

    Raises:
        ValueError: the file is missing or something in it is wrong; each problem with the value found and the choices.
    """
    if not path.is_file():
        raise ValueError(f"no {path}: run this from the top folder of the project")
    return check(read(path), path.name)


def check(values: dict[str, Any], name: str = "params.yaml") -> Params:
    """The same of a mapping."""
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        raise ValueError(f"{name}: " + "; ".join(_sentence(e) for e in error.errors())) from None


def _sentence(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"{place} is missing"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{place}: {message}" if place else message
    return f"{place}={error['input']!r}: {message[0].lower()}{message[1:]}"
