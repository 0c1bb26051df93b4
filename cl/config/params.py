"""The parameters of one experiment."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SerializeAsAny

from cl.data.views import SingleView, View
from cl.detection.config import Config as Transfer
from cl.losses import LossConfig
from cl.methods import MethodConfig
from cl.networks import patches
from cl.networks.backbones import BackboneConfig
from cl.pretraining import monitor
from cl.runtime.base_config import BaseConfig, Seed
from cl.runtime.machine import PrecisionChoice
from cl.runtime.registry import config_of
from cl.sources import Source
from cl.training import optim


class PretrainingOptim(optim.Config):
    """The optimizer of pretraining, how its steps are computed, and what is measured while it trains.

    predictor_lr: `fixed` keeps the predictor at the largest learning rate throughout (SimSiam, Fast-MoCo).
    backbone_lr_scale: multiplies the learning rate of the backbone, for weights given by `init`.
    lr_scale_1d: multiplies the learning rate of biases and norm layers (Barlow Twins).
    least_steps: with few images of your own, `epochs` is raised to at least this number of steps.
    microbatches: number of parts in which a batch is encoded, and encoded again in the backward pass, if its
        activations do not fit in memory; the gradient equals the gradient of the whole batch.
    compile: run the encoder through torch.compile, which takes minutes to start; auto: in a long training of
        large views on a GPU, if there is a compiler; graphs: also launch its kernels as CUDA graphs.
    cropping: where images are cropped: in data workers, or on the training device if all fit there
        (`cl.data.device_crops`); the pixels differ by rounding.
    keep_every: the method is kept after every `keep_every`-th epoch, for analyses; null: only after the last.
    """

    predictor_lr: Literal["scheduled", "fixed"]
    backbone_lr_scale: float = Field(gt=0)
    lr_scale_1d: float = Field(gt=0)
    least_steps: int | None = Field(gt=0)
    microbatches: int = Field(gt=0)
    compile: bool | Literal["auto", "graphs"]
    cropping: Literal["workers", "device"]
    keep_every: int | None = Field(None, gt=0)
    monitor: monitor.Config


class SupervisedTraining(BaseConfig):
    """How a supervised baseline is trained."""

    optim: optim.Config
    views: dict[str, SingleView] = Field(min_length=1, max_length=1)


class Baseline(BaseConfig):
    """An encoder to compare with: trained with labels, a teacher, or with `training: null` published or not.

    weights: what `init` takes but an experiment; `init` replaces it. None for an untrained encoder.
    hash: of the file that `weights` names; None for published weights.
    """

    training: SupervisedTraining | Literal["teacher"] | None
    weights: str | None = None
    hash: "Hash | None" = None
    evaluations: Literal["all"] | list[str]
    transfers: Literal["all"] | list[str]

    def title(self, name: str) -> str:
        """What a baseline of this name is, in words."""
        if self.weights:
            return f"published encoder ({self.weights})"
        return f"{name.replace('_', ' ') if self.training else 'untrained'} encoder"


Hash = Annotated[str, Field(pattern=r"^(sha256|md5):[0-9a-f]+$")]


class Init(BaseConfig):
    """A trained backbone to start from (torchvision's, a checkpoint's or an experiment's), and its hash."""

    name: str
    hash: Hash = Field(description="for torchvision's weights, the first digits")


class Parent(BaseConfig):
    """An experiment to continue, and the hashes of its method and optimizer."""

    name: str
    method: Hash
    optimizer: Hash


class Report(BaseConfig):
    """What the report shows; `pictures: false` keeps private images out of it."""

    pictures: bool


class Params(BaseConfig):
    """`params.yaml`."""

    seed: Seed
    recipe: str | None
    init: Init | None
    start_from: Parent | None
    teacher: Init | None = Field(description="a trained backbone that method.kind=distill learns from")
    hand_over: Literal["trained", "better"] = Field(
        description="better: the encoder of `init`, unless training made it better on held-out images"
    )
    arms: list[dict[Literal["optim", "views"], dict[str, Any]]] = Field(
        description="changes of these parameters that hand_over=better also tries, from the same start"
    )
    ungrouped: bool = Field(description="hand_over=better looks for no images that belong together")
    dataset: Annotated[SerializeAsAny[Source], config_of("sources")]
    views: dict[str, View] = Field(min_length=1)
    patches: Annotated[patches.Config, Field(discriminator="kind")]
    backbone: Annotated[SerializeAsAny[BackboneConfig], config_of("networks.backbones")]
    method: Annotated[SerializeAsAny[MethodConfig], config_of("methods")]
    temperature: float | None = Field(gt=0)
    loss: Annotated[SerializeAsAny[LossConfig], config_of("losses")]
    optim: PretrainingOptim
    precision: PrecisionChoice
    deterministic: bool
    bn_group: Literal["global"] | int = Field(description="images that share batch statistics")
    evaluations: dict[str, Annotated[SerializeAsAny[BaseModel], config_of("evaluations")]]
    transfers: dict[str, Transfer]
    analyses: dict[str, Annotated[SerializeAsAny[BaseModel], config_of("analyses")]]
    baselines: dict[str, Baseline]
    report: Report
    overrides: list[str] = Field(description="the overrides that all other parameters were composed from")

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
        """The number of batch-norm groups in a batch."""
        return 1 if self.bn_group == "global" else self.optim.batch_size // self.bn_group

    @property
    def titles(self) -> dict[str, str]:
        """Evaluations, transfers and baselines in words, by name."""
        measured: dict[str, Any] = {**self.evaluations, **self.transfers}
        return {name: config.title for name, config in measured.items()} | {
            name: baseline.title(name) for name, baseline in self.baselines.items()
        }

    def selected(self, baseline: Baseline) -> tuple[list[str], list[str]]:
        """The names of a baseline's evaluations, and of its transfers."""
        evaluations = list(self.evaluations) if baseline.evaluations == "all" else baseline.evaluations
        transfers = list(self.transfers) if baseline.transfers == "all" else baseline.transfers
        return evaluations, transfers

    @property
    def view_sizes(self) -> list[int]:
        """The side of every view of an image, in pixels."""
        return [view.size for view in self.views.values() for _ in range(view.count)]
