"""Every method on disk at a tiny size, with what it is trained on and the losses that fit it."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cl.batch import Batch
from cl.config import read
from cl.contrast import Contrast
from cl.losses import LossConfig
from cl.methods import BaseMethod, MethodConfig, Setup
from cl.networks import heads, patches
from cl.networks.target import Ema
from cl.pretraining.task import PretrainingTask
from cl.runtime.kinds import kinds, module_of
from cl.runtime.machine import Machine
from tests.support.project import ROOT
from tests.support.tiny import TinyBackbone

TAU = 0.2
IMAGES = 96  # in the training split, according to the setup of a method
LARGEST = 20  # of whole numbers: queues, banks, prototypes
HEAD = heads.Config(hidden=[7], out=5, norm=True, last_norm="none", last_bias=True, std=None)
EMA = Ema(momentum=0.9, schedule="cosine")
WHOLE = patches.Whole(kind="whole")
FAST = patches.Combine(kind="combine", grid=2, choose=2, stage="final", pairs="all")
HERE = Machine(torch.device("cpu"), 0, "fp32")

# Settings beyond those of pipeline/conf that get the same tests; not every kind needs any.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "simclr": [{"pool": "other_view"}, {"pool": "other_view", "negatives": 3}, {"negatives": 4}],
    "moco": [{"symmetric": True}, {"keys": "rest"}, {"queue": 3}],
    "simo": [
        {"negatives": 3, "sampling": "shared"},
        {"negatives": 3, "sampling": "per_query"},
        {"shuffle": True},
    ],
    "nnclr": [{"ema": EMA}],
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
    replaced = {"projector": HEAD, "predictor": HEAD, "ema": EMA}
    result = {key: replaced[key] if key in replaced and value else value for key, value in settings.items()}
    for key, value in settings.items():
        if isinstance(value, int) and not isinstance(value, bool):
            result[key] = min(value, LARGEST)
    return {**result, "scale": 1.0}


def config_of(kind: str, **settings: Any) -> MethodConfig:
    """The configuration of a method at a tiny size."""
    return module_of("methods", kind).Config(**{**tiny(shipped("method", "method")[kind]), **settings})


def build(
    kind: str, *, bn_groups: int = 1, microbatches: int = 1, cut: patches.Config = WHOLE, **settings: Any
) -> BaseMethod:
    """A method with the tiny encoder, in float64."""
    torch.manual_seed(0)
    config = config_of(kind, **settings)
    temperature = TAU if gives(kind) is Contrast else None
    setup = Setup(TinyBackbone(), temperature, cut, bn_groups, 0, IMAGES, microbatches)
    return module_of("methods", kind).Method(config, setup).double()


def kind_of(method: BaseMethod) -> str:
    return type(method).__module__.rsplit(".", 1)[1]


def gives(kind: str) -> type:
    return module_of("methods", kind).Config.gives


def takes_patches(kind: str) -> bool:
    return module_of("methods", kind).Config.takes_patches


VARIANTS = [(kind, option) for kind in kinds("methods") for option in [{}, *OPTIONS.get(kind, [])]]
CASES = [(kind, option, WHOLE) for kind, option in VARIANTS]
CASES += [(kind, option, FAST) for kind, option in VARIANTS if takes_patches(kind)]


def case_name(case: tuple[str, dict, patches.Config]) -> str:
    """The name of a variant: kind, patches and what differs from the shipped settings."""
    kind, option, cut = case
    return " ".join([kind, cut.kind, *(key if key == "ema" else f"{key}={option[key]}" for key in option)])


def loss_config(kind: str, **settings: Any) -> LossConfig:
    """The shipped configuration of a loss with these settings changed."""
    return module_of("losses", kind).Config(**{**shipped("loss")[kind], **settings})


def losses_for(kind: str) -> list[str]:
    """The losses that take what a method gives."""
    return [loss for loss in kinds("losses") if module_of("losses", loss).Config.takes is gives(kind)]


def usual_loss(kind: str) -> LossConfig:
    """InfoNCE without margin, or the first loss that fits."""
    fitting = losses_for(kind)
    return loss_config("infonce", alpha=None) if "infonce" in fitting else loss_config(fitting[0])


def task_of(method: BaseMethod, loss: LossConfig | None = None, here: Machine = HERE) -> PretrainingTask:
    """A method with a loss, by default its usual one."""
    loss = loss or usual_loss(kind_of(method))
    return PretrainingTask(method, module_of("losses", loss.kind), loss, 1.0, here)


def mean_loss(method: BaseMethod, batch: Batch) -> Tensor:
    """The mean of the usual loss over the terms of a batch."""
    loss = usual_loss(kind_of(method))
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


def training_batch(kind: str, option: dict, n: int, seed: int) -> Batch:
    """N images in two large and two small views, or in four large ones where the method takes as many."""
    large = config_of(kind, **option).large_views(4)
    return batch_of(views(n, seed, (12,) * large + (8,) * (4 - large)), first=seed * n)


def as_type(batch: Batch, dtype: torch.dtype) -> Batch:
    return Batch([view.to(dtype) for view in batch.views], batch.labels, batch.positions, batch.groups)


def train_step(task: PretrainingTask, number: int, batch: Batch) -> Tensor:
    """A step of plain gradient descent; its loss."""
    task.begin_step(number, number / 10)
    loss = task(batch)
    loss.backward()
    with torch.no_grad():
        for p in task.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad
                p.grad = None
    task.after_step((number + 1) / 10)
    return loss.detach()
