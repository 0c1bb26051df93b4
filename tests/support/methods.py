"""Every method on disk at a tiny size, with what it is trained on and the losses that fit it."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cl.config import read, rules
from cl.losses import LossConfig
from cl.methods import BaseMethod, MethodConfig, Setup
from cl.networks import heads, patches
from cl.networks.backbones import Backbone
from cl.networks.passes import encode_in_microbatches, l2_normalize
from cl.networks.target import Ema
from cl.networks.teacher import SeeingTeacher, StoredTeacher, Teacher
from cl.objective.batch import Batch
from cl.objective.traits import Traits
from cl.pretraining.task import PretrainingTask
from cl.runtime.machine import Machine
from cl.runtime.registry import kinds, module_of
from tests.support.project import ROOT
from tests.support.tiny import TinyBackbone, TinyTwoStreams

TAU = 0.2
IMAGES = 96  # in the training split, according to the setup of a method
LARGEST = 20  # of whole numbers: queues, banks, prototypes
HEAD = heads.Config(hidden=[7], out=5, norm=True, last_norm="none", last_bias=True, std=None)
EMA = Ema(momentum=0.9, schedule="cosine")
WHOLE = patches.Whole(kind="whole")
FAST = patches.Combine(kind="combine", grid=2, choose=2, stage="final", pairs="all")
GROUP_OF_8 = {"images": 8, "clusters": 3, "iterations": 2, "temperature": 0.5, "weight": 0.25}
HERE = Machine(torch.device("cpu"), 0, "fp32")

# Settings beyond those of pipeline/conf that get the same tests; not every kind needs any.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "simclr": [
        {"pool": "other_view"},
        {"pool": "other_view", "negatives": 3},
        {"negatives": 4},
        {"targets": "all"},
    ],
    "moco": [{"symmetric": True}, {"keys": "rest"}, {"queue": 3}],
    "simo": [
        {"negatives": 3, "sampling": "shared"},
        {"negatives": 3, "sampling": "per_query"},
        {"shuffle": True},
    ],
    "nnclr": [{"ema": EMA}],
    "distill": [{"teacher_views": "same"}, {"queue": 3}],
    "npid_cld": [{"group": GROUP_OF_8}],
    "moco_cld": [{"group": GROUP_OF_8, "shuffle": True}],
    "cpc_v2": [{"offsets": [1, 2], "directions": 2}, {"patch": 4}],
    "local_aggregation": [{"warmup_epochs": 0, "clusterings": 3}],
    "npid": [{"negatives": None, "own": False}],
    "dino": [{"frozen_epochs": 0}],
    "swav": [{"frozen_epochs": 0}, {"frozen_epochs": 0, "queue": 20, "queue_epoch": 0}],
}


@cache
def shipped(group: str, key: str | None = None) -> dict[str, dict[str, Any]]:
    """For each kind the settings of the first file of `pipeline/conf/<group>` that names it, below `key`."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(Path(ROOT / "pipeline/conf" / group).glob("*.yaml")):
        values = read(path)
        settings = values.get(key, {}) if key else values
        if "kind" in settings:
            found.setdefault(settings["kind"], settings)
    return found


def tiny(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a method with small heads and small numbers, and a scale of 1."""
    return {key: _tiny(key, value) for key, value in settings.items()} | {"scale": 1.0}


def _tiny(key: str, value: Any) -> Any:
    replaced = {"projector": HEAD, "predictor": HEAD, "ema": EMA}
    if key in replaced and value:
        return replaced[key]
    if isinstance(value, dict):
        return {inner: _tiny(inner, content) for inner, content in value.items()}
    return min(value, LARGEST) if isinstance(value, int) and not isinstance(value, bool) else value


def config_of(kind: str, **settings: Any) -> MethodConfig:
    """The configuration of a method at a tiny size."""
    return module_of("methods", kind).Config(**{**tiny(shipped("method", "method")[kind]), **settings})


def build(
    kind: str,
    *,
    bn_groups: int = 1,
    microbatches: int = 1,
    cut: patches.Config = WHOLE,
    backbone: Backbone | None = None,
    within: bool = False,
    **settings: Any,
) -> BaseMethod:
    """A method with the tiny encoder, unless another is given, in float64."""
    torch.manual_seed(0)
    config = config_of(kind, **settings)
    temperature = TAU if "contrasts" in config.gives else None
    backbone = backbone or (TinyTwoStreams() if "two networks" in config.needs_backbone else TinyBackbone())
    setup = Setup(backbone, temperature, cut, bn_groups, 0, IMAGES, within, teacher_of(config))
    method = module_of("methods", kind).Method(config, setup).double()
    encode_in_microbatches(method, microbatches)
    return method


def teacher_of(config: MethodConfig, images: int = IMAGES) -> Teacher | None:
    """A teacher in float64 for a method that needs one: random features, or a random projection of pixels."""
    if config.kind != "distill":
        return None
    rng, width = torch.Generator().manual_seed(1), config.embedding_width
    if config.teacher_views == "fixed":
        return Moving(StoredTeacher(l2_normalize(torch.randn(images, width, generator=rng).double())))
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, width)).double()
    with torch.no_grad():
        for weights in network.parameters():
            weights.copy_(torch.randn(weights.shape, generator=rng))
    normalisations = torch.tensor([[[0.5] * 3, [0.2] * 3], [[0.4] * 3, [0.3] * 3]]).double()
    return Moving(SeeingTeacher(network, 8, *normalisations))


class Moving:
    """A teacher in float64 that follows the images to their device."""

    def __init__(self, teacher: StoredTeacher | SeeingTeacher) -> None:
        self.teacher, self.device = teacher, torch.device("cpu")

    def embed(self, images: Tensor, positions: Tensor) -> Tensor:
        if self.device != images.device:
            self.device = images.device
            for name, value in vars(self.teacher).items():
                if isinstance(value, Tensor | torch.nn.Module):
                    setattr(self.teacher, name, value.to(self.device))
        return self.teacher.embed(images.double(), positions).to(images.dtype)


def kind_of(method: BaseMethod) -> str:
    return type(method).__module__.rsplit(".", 1)[1]


def gives(kind: str) -> Traits:
    return module_of("methods", kind).Config.gives


Case = tuple[str, dict[str, Any], patches.Config]  # a kind of method, options, patches

VARIANTS = [(kind, option) for kind in kinds("methods") for option in [{}, *OPTIONS.get(kind, [])]]
CASES: list[Case] = [(kind, option, WHOLE) for kind, option in VARIANTS]
CASES += [(kind, option, FAST) for kind, option in VARIANTS if "patches" in gives(kind)]


def case_name(case: Case) -> str:
    """The name of a variant: kind, patches and what differs from the shipped settings."""
    kind, option, cut = case
    return " ".join(
        [kind, cut.kind, *(key if key in ("ema", "group") else f"{key}={option[key]}" for key in option)]
    )


def loss_config(kind: str, **settings: Any) -> LossConfig:
    """The shipped configuration of a loss with these settings changed."""
    return module_of("losses", kind).Config(**{**shipped("loss")[kind], **settings})


@cache
def losses_for(kind: str) -> list[str]:
    """The losses that fit a method."""
    return rules.losses_for(module_of("methods", kind).Config, gives(kind) | {"several positives"})


def usual_loss(kind: str) -> LossConfig:
    """The loss that the method's first file of settings brings, or InfoNCE without margin."""
    (name, *_) = usual_losses(kind)
    return loss_config(name, alpha=None) if name == "infonce" else loss_config(name)


@cache
def usual_losses(kind: str) -> list[str]:
    """The losses that the method's files of settings bring, or InfoNCE."""
    return list(dict.fromkeys(loss for method, loss in _brought() if method == kind)) or ["infonce"]


@cache
def _brought() -> list[tuple[str, str]]:
    """Kinds of methods with the losses that their files bring."""
    folder, found = ROOT / "pipeline/conf/method", []
    for path in sorted(folder.glob("*.yaml")):
        choices = [entry for entry in read(path).get("defaults", []) if isinstance(entry, dict)]
        losses = [choice["override /loss"] for choice in choices if "override /loss" in choice]
        found += [(_kind_of_file(path), loss) for loss in losses]
    return found


def _kind_of_file(path: Path) -> str:
    """The kind of method that a file sets, or the file that it builds on."""
    values = read(path)
    own = values.get("method", {}).get("kind")
    return own or _kind_of_file(path.with_stem(values["defaults"][0]))


def example(loss: str) -> str:
    """The method that shows a loss at work in the fast tests: SimCLR, or the first that it fits."""
    fitting = [kind for kind in kinds("methods") if loss in losses_for(kind)]
    return "simclr" if "simclr" in fitting else fitting[0]


def is_fast(case: Case, loss: str) -> bool:
    """Whether the fast tests train it: all methods with their usual losses, and each loss with one method."""
    kind, option, cut = case
    return (case, loss) in USUAL or (kind == example(loss) and option == {} and cut == WHOLE)


# Every method with its usual losses; options and patches with the first of them.
USUAL = [
    (case, loss) for case in CASES for loss in usual_losses(case[0])[: None if case[1:] == ({}, WHOLE) else 1]
]


def usual_name(case: Case, loss: str) -> str:
    """The name of a variant with a loss, which is not named if it is the first usual one."""
    return case_name(case) if loss == usual_losses(case[0])[0] else f"{case_name(case)} {loss}"


def cells(cases: list[Case]) -> list:
    """Every variant with every loss that fits; `make test-slow` trains what the fast tests leave out."""
    import pytest  # late: benchmarks.gpu.check runs where it is not installed

    return [
        pytest.param(
            case, loss, marks=() if is_fast(case, loss) else pytest.mark.slow, id=f"{case_name(case)} {loss}"
        )
        for case in cases
        for loss in losses_for(case[0])
    ]


def takes_columns(kind: str, loss: str) -> bool:
    """Whether a method and a loss are defined for other images of a value as positives and negatives."""
    return "columns" in gives(kind) and "columns" in module_of("losses", loss).Config.gives


def with_columns(batch: Batch, step: int, k: int = 3) -> Batch:
    """The same images with values: k are drawn together, of which some share one; two or three sites."""
    n = len(batch.positions)
    positive = (torch.arange(n) + step) * 2 // 3
    within = torch.arange(n) * 7 % 5 % 3
    return replace(batch, positive=positive.unflatten(0, (-1, k)), groups=positive, within=within)


def task_of(method: BaseMethod, loss: LossConfig | None = None, here: Machine = HERE) -> PretrainingTask:
    """A method with a loss, by default its usual one."""
    loss = loss or usual_loss(kind_of(method))
    return PretrainingTask(method, module_of("losses", loss.kind), loss, 1.0, here)


def mean_loss(method: BaseMethod, batch: Batch, loss: LossConfig | None = None) -> Tensor:
    """The mean of a loss, by default the usual one, over the terms of a batch."""
    loss = loss or usual_loss(kind_of(method))
    return torch.stack(
        [module_of("losses", loss.kind).loss(term, loss, 0.0) for term in method(batch)]
    ).mean()


def views(n: int, seed: int = 0, sizes: tuple[int, ...] = (12, 12)) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 3, size, size, generator=rng, dtype=torch.float64) for size in sizes]


def batch_of(inputs: list[Tensor], groups: Tensor | None = None, first: int = 0) -> Batch:
    """The batch of these views, whose images lie at the positions from `first` on."""
    n = len(inputs[0])
    positions = (first + torch.arange(n)) % IMAGES
    return Batch(inputs, torch.zeros(n, dtype=torch.int64), positions, groups)


def training_batch(kind: str, option: dict, n: int, seed: int, count: int = 4) -> Batch:
    """N images in two large views and small ones, unless the method takes more views or more large ones."""
    config = config_of(kind, **option)
    count = max(count, config.least_views)
    large = config.large_views(count)
    return batch_of(views(n, seed, (12,) * large + (8,) * (count - large)), first=seed * n)


def as_type(batch: Batch, dtype: torch.dtype) -> Batch:
    return replace(batch, views=[view.to(dtype) for view in batch.views])


def on(device: torch.device, batch: Batch) -> Batch:
    return each_tensor(batch, lambda x: x.to(device))


def each_tensor(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with all of its tensors changed."""
    views, *others = vars(batch).values()
    return Batch(list(map(change, views)), *(None if x is None else change(x) for x in others))


def train_step(
    task: PretrainingTask, number: int, batch: Batch, backward: Callable[[Tensor], None] = Tensor.backward
) -> Tensor:
    """A step of plain gradient descent; its loss. Step 0 begins an epoch."""
    if number == 0:
        task.begin_epoch(0)
    task.begin_step(number, number / 10)
    loss = task(batch)
    backward(loss)
    with torch.no_grad():
        for p in task.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad
                p.grad = None
    task.after_step((number + 1) / 10)
    return loss.detach()
