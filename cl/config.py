"""The parameters of one experiment, checked as a whole before anything is read or written."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator
from ruamel.yaml import YAML, YAMLError

from cl.contrast import Contrast
from cl.data.views import View
from cl.detection.config import Config as Transfer
from cl.losses import LossConfig
from cl.methods import MethodConfig
from cl.networks import backbones, patches
from cl.pretraining import monitor
from cl.runtime.base_config import BaseConfig, Seed
from cl.runtime.kinds import config_of, kinds, module_of
from cl.runtime.machine import Precision
from cl.sources import Source
from cl.training import optim

RENAMED = {"optim.chunks": "optim.microbatches"}  # keys of earlier versions, and their names today


def _parse_patches(value: Any) -> Any:
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in patches.KINDS:
        raise ValueError(f"kind={kind} is unknown; choose one of {', '.join(patches.KINDS)}")
    return patches.KINDS[kind].model_validate(value)


class PretrainingOptim(optim.Config):
    """The optimizer of pretraining, how its steps are computed, and what is measured while it trains.

    predictor_lr: `fixed` keeps the predictor at the largest learning rate throughout (SimSiam, Fast-MoCo).
    microbatches: number of parts in which a batch is encoded, and encoded again in the backward pass, if the
        activations of all of it do not fit in memory; the gradient is that of the whole batch.
    compile: run the encoder through torch.compile, which takes minutes to start.
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
    """An encoder to compare with: trained with labels, or untrained (`training: null`)."""

    training: SupervisedTraining | None
    evaluations: Literal["all"] | list[str]
    transfers: Literal["all"] | list[str]


class Params(BaseConfig):
    """`params.yaml`."""

    seed: Seed
    recipe: str | None
    dataset: Annotated[SerializeAsAny[Source], config_of("sources")]
    views: dict[str, View] = Field(min_length=1)
    patches: Annotated[patches.Config, BeforeValidator(_parse_patches)]
    backbone: backbones.Config
    method: Annotated[SerializeAsAny[MethodConfig], config_of("methods")]
    temperature: float | None = Field(gt=0)
    loss: Annotated[SerializeAsAny[LossConfig], config_of("losses")]
    optim: PretrainingOptim
    precision: Precision
    deterministic: bool
    bn_group: Literal["global"] | int = Field(description="images that share batch statistics")
    evaluations: dict[str, Annotated[SerializeAsAny[BaseModel], config_of("evaluations")]]
    transfers: dict[str, Transfer]
    analyses: dict[str, Annotated[SerializeAsAny[BaseModel], config_of("analyses")]]
    baselines: dict[str, Baseline]

    @property
    def bn_groups(self) -> int:
        """Groups of batch norm in a batch."""
        return 1 if self.bn_group == "global" else self.optim.batch_size // self.bn_group

    def selected(self, baseline: Baseline) -> tuple[list[str], list[str]]:
        """The names of the evaluations and of the transfers of a baseline."""
        evaluations = list(self.evaluations) if baseline.evaluations == "all" else baseline.evaluations
        transfers = list(self.transfers) if baseline.transfers == "all" else baseline.transfers
        return evaluations, transfers

    @property
    def view_sizes(self) -> list[int]:
        """The side of every view of an image, in pixels."""
        return [view.size for view in self.views.values() for _ in range(view.count)]

    @model_validator(mode="after")
    def _fit_together(self) -> "Params":
        for check in CHECKS:
            check(self)
        return self


def _loss_fits_method(params: Params) -> None:
    method, loss = params.method, params.loss
    if loss.takes is not method.gives:
        raise ValueError(
            f"method={method.kind} gives {method.gives.description}, but loss={loss.kind} takes "
            f"{loss.takes.description}; {_fitting_losses(params)}"
        )
    if loss.needs_several_positives and method.positives(len(params.view_sizes)) == 1:
        configs = [module_of("methods", kind).Config for kind in kinds("methods")]
        ways = [config.several_positives for config in configs if config.several_positives]
        raise ValueError(
            f"loss={loss.kind} needs several positives per query, but method={method.kind} gives one; "
            f"choose {' or '.join(ways)}, or another loss: {_fitting_losses(params)}"
        )


def _fitting_losses(params: Params) -> str:
    """A remedy: the losses that take what the method gives."""
    several = params.method.positives(len(params.view_sizes)) > 1
    configs = {kind: module_of("losses", kind).Config for kind in kinds("losses")}
    fitting = [
        kind
        for kind, config in configs.items()
        if config.takes is params.method.gives and (several or not config.needs_several_positives)
    ]
    return f"choose loss={' or '.join(fitting)}" if fitting else "no loss takes these: choose another method"


def _temperature_fits_method(params: Params) -> None:
    method, temperature = params.method, params.temperature
    if method.gives is Contrast and temperature is None:
        raise ValueError(f"method={method.kind} needs a temperature, found temperature=null; 0.1 is common")
    if method.gives is not Contrast and temperature is not None:
        raise ValueError(
            f"temperature={temperature} has no effect with method={method.kind}; choose temperature=null"
        )


def _views_fit_method(params: Params) -> None:
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


def _patches_fit_method_and_views(params: Params) -> None:
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


def _method_fits_the_rest(params: Params) -> None:
    params.method.check(params)


def _groups_fit_batch(params: Params) -> None:
    group, batch = params.bn_group, params.optim.batch_size
    if group != "global" and (group < 2 or batch % group):
        raise ValueError(
            f"bn_group={group} must divide optim.batch_size={batch} into groups of two or more images; "
            "choose a divisor, or global"
        )


def _microbatches_hold_groups(params: Params) -> None:
    microbatches, group, batch = params.optim.microbatches, params.bn_group, params.optim.batch_size
    if microbatches > 1 and (group == "global" or batch % (microbatches * group)):
        raise ValueError(
            f"optim.microbatches={microbatches} makes microbatches of {batch / microbatches:g} images, which "
            f"must be a multiple of bn_group={group}; choose another bn_group, or optim.microbatches=1"
        )


def _compiled_encoders_run_as_a_whole(params: Params) -> None:
    cut = params.patches
    if params.optim.compile and isinstance(cut, patches.Combine) and cut.stage in patches.STITCHED:
        raise ValueError(
            f"optim.compile=true compiles the encoder as a whole, but patches.stage={cut.stage} runs it in "
            "parts; choose optim.compile=false"
        )


def _detectron2_has_the_backbone(params: Params) -> None:
    backbone = params.backbone
    for name, transfer in params.transfers.items():
        if transfer.engine == "detectron2" and (backbone.width, backbone.stem) != (1, "imagenet"):
            raise ValueError(
                f"transfers.{name}.engine=detectron2 takes backbone.stem=imagenet and backbone.width=1, "
                f"found {backbone.stem} and {backbone.width}; choose engine=torchvision or backbone=resnet50"
            )


def _baselines_name_what_exists(params: Params) -> None:
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
    _method_fits_the_rest,
    _groups_fit_batch,
    _microbatches_hold_groups,
    _compiled_encoders_run_as_a_whole,
    _detectron2_has_the_backbone,
    _baselines_name_what_exists,
)


def read(path: Path) -> dict[str, Any]:
    """A parameter file, read as YAML 1.2 as DVC does: `1e-3` is a number."""
    return parse(path.read_text(), str(path))


def parse(text: str, name: str) -> dict[str, Any]:
    """The same from a string; errors refer to it as `name`."""
    try:
        values = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{name} must contain keys and values, found {str(values)[:40]!r}")
    return values


def load(path: Path) -> Params:
    """The checked parameters of a file.

    Raises:
        ValueError: the file is missing or some values are wrong; the message names each, and the choices.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing: run this from the top folder of the project")
    return check(read(path), path.name)


def check(values: dict[str, Any], name: str = "params.yaml") -> Params:
    """The same from a mapping."""
    for old in RENAMED:
        if _contains(values, old.split(".")):
            raise ValueError(f"{name}: {renamed(old)}")
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        raise ValueError(f"{name}: " + "; ".join(_sentence(e) for e in error.errors())) from None


def renamed(key: str) -> str:
    """The error message for a key of an earlier version."""
    return f"{key} is now {RENAMED[key]} (see CHANGELOG.md)"


def _contains(values: Any, path: list[str]) -> bool:
    found = isinstance(values, dict) and path[0] in values
    return found and (len(path) == 1 or _contains(values[path[0]], path[1:]))


def _sentence(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"{place} is missing"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{place}: {message}" if place else message
    return f"{place}={error['input']!r}: {message[0].lower()}{message[1:]}"
