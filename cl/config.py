"""The parameters of one experiment, checked as a whole before anything is read or written."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator
from ruamel.yaml import YAML, YAMLError

from cl import rules
from cl.data.views import View
from cl.detection.config import Config as Transfer
from cl.losses import LossConfig
from cl.methods import MethodConfig
from cl.networks import patches
from cl.networks.backbones import BackboneConfig
from cl.pretraining import monitor
from cl.runtime.base_config import BaseConfig, Seed
from cl.runtime.kinds import config_of
from cl.runtime.machine import Precision
from cl.sources import Source
from cl.training import optim

Kind = TypeVar("Kind", bound=BaseModel)
RENAMED = {"optim.chunks": "optim.microbatches"}  # keys of earlier versions, and their names today


def _parse_patches(value: Any) -> Any:
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in patches.KINDS:
        raise ValueError(f"kind={kind} is unknown; choose one of {', '.join(patches.KINDS)}")
    return patches.KINDS[kind].model_validate(value)


class PretrainingOptim(optim.Config):
    """The optimizer of pretraining, how its steps are computed, and what is measured while it trains.

    predictor_lr: `fixed` keeps the predictor at the largest learning rate throughout (SimSiam, Fast-MoCo).
    backbone_lr_scale: the backbone's learning rate relative to that of the rest, for weights given by `init`.
    lr_scale_1d: the learning rate of biases and norm layers relative to that of matrices (Barlow Twins).
    microbatches: number of parts in which a batch is encoded, and encoded again in the backward pass, if the
        activations of all of it do not fit in memory; the gradient is that of the whole batch.
    compile: run the encoder through torch.compile, which takes minutes to start.
    cropping: where images are decoded and cropped: in data workers, or on the device that trains
        (`cl.data.device_crops`), which changes pixels by rounding, and by another JPEG decoder on a GPU.
    """

    predictor_lr: Literal["scheduled", "fixed"]
    backbone_lr_scale: float = Field(gt=0)
    lr_scale_1d: float = Field(gt=0)
    microbatches: int = Field(gt=0)
    compile: bool
    cropping: Literal["workers", "device"]
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


Hash = Annotated[str, Field(pattern=r"^(sha256|md5):[0-9a-f]+$")]


class Init(BaseConfig):
    """A trained backbone to start from: torchvision's, a checkpoint's or an experiment's, and its hash."""

    name: str
    hash: Hash = Field(description="for torchvision's weights, the first digits")


class Parent(BaseConfig):
    """An experiment to continue, and the hashes of its method and optimizer."""

    name: str
    method: Hash
    optimizer: Hash


class Report(BaseConfig):
    """What the report shows: `pictures: false` keeps private images out of it."""

    pictures: bool


class Params(BaseConfig):
    """`params.yaml`."""

    seed: Seed
    recipe: str | None
    init: Init | None
    start_from: Parent | None
    dataset: Annotated[SerializeAsAny[Source], config_of("sources")]
    views: dict[str, View] = Field(min_length=1)
    patches: Annotated[patches.Config, BeforeValidator(_parse_patches)]
    backbone: Annotated[SerializeAsAny[BackboneConfig], config_of("networks.backbones")]
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
    report: Report

    @property
    def start_name(self) -> str | None:
        """The name of the weights that pretraining starts from."""
        given = self.init or self.start_from
        return given.name if given else None

    @property
    def start_hashes(self) -> list[str]:
        """The hashes of these weights."""
        if self.init:
            return [self.init.hash]
        return [self.start_from.method, self.start_from.optimizer] if self.start_from else []

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
        for check in rules.CHECKS:
            check(self)
        return self


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
    values = read(path)
    try:
        return check(values)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def check(values: dict[str, Any]) -> Params:
    """The same from a mapping."""
    for old in RENAMED:
        if _contains(values, old.split(".")):
            raise ValueError(renamed(old))
    return validated(Params, values)


def validated(kind: type[Kind], values: dict[str, Any]) -> Kind:
    """A mapping as a model of this kind.

    Raises:
        ValueError: some values are wrong; the message names each, and the choices.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ValueError("; ".join(_sentence(e) for e in error.errors())) from None


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
