"""A short adaptation of an encoder on images in memory, with method, loss, views and loop of `own/adapt`."""

import copy
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import cast

import numpy as np
import torch
from rich.console import Console

from cl.console.progress import Progress
from cl.data.order import Plan, reduced
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.views import OPERATIONS, Blur, Jitter, View
from cl.encoders.encoder import Encoder
from cl.losses import dcl
from cl.methods import Setup, simclr
from cl.networks import heads
from cl.networks.backbones import check_size
from cl.networks.batch_norm import has_batch_norm
from cl.networks.patches import Whole
from cl.pretraining.task import PretrainingTask
from cl.runtime import machine
from cl.training import optim
from cl.training.loop import train

SIDES = 96, 98, 224  # pixels of a view: the recipe's, or what a transformer's patches allow
RESIZE = 110  # pixels, before the crop of SIDES[0]
LEAST_STEPS = 120  # of the recipe
TIMED = 3  # steps that are timed
VIEW = View(
    count=2,
    size=SIDES[0],
    area=(0.2, 1.0),
    interpolation="bilinear",
    flip=0.5,
    jitter=Jitter(p=0.8, brightness=0.3, contrast=0.3, saturation=0.1, hue=0.02),
    grayscale=0.0,
    blur=Blur(p=0.5, sigma=(0.1, 2.0), kernel=23),
    solarize=0.0,
    order=list(OPERATIONS),
)
OPTIM = optim.Config(
    kind="sgd",
    batch_size=64,
    epochs=15,
    base_lr=0.02,
    reference_batch=256,
    scaling="linear",
    momentum=0.9,
    nesterov=False,
    weight_decay=5e-4,
    warmup_epochs=1,
    schedule="cosine",
    milestones=[],
    gamma=0.1,
)
FASTER = OPTIM.model_copy(update={"base_lr": 0.12})
ADAMW = OPTIM.model_copy(
    update={
        "kind": "adamw",
        "base_lr": 2e-4,
        "momentum": 0.0,
        "betas": (0.9, 0.999),
        "weight_decay": 0.1,
        "decay_1d": False,
    }
)
OF_ADAMW = ["optim=adamw", "optim.base_lr=2e-4", "arms=[]"]  # the same for the recipe
METHOD = simclr.Config(
    kind="simclr",
    projector=heads.Config(hidden=[512], out=128, norm=True, last_norm="none", last_bias=True, std=None),
    pool="both_views",
    negatives=None,
    targets="first_two",
    scale=1.0,
)


class InMemory(list[np.ndarray]):
    """Decoded images, for `TrainSet` as a `Reader` without labels, groups and columns."""

    remote, never_negatives, values = False, None, MappingProxyType[str, np.ndarray]({})
    pixels = list[np.ndarray].__getitem__

    def labels(self, positions: np.ndarray) -> np.ndarray:
        return np.full(len(positions), -1)


def optimizers(encoder: Encoder) -> list[optim.Config]:
    """What is tried in turn: both rates of the recipe, or AdamW, as `pretrain` advises without batch norm."""
    return [OPTIM, FASTER] if has_batch_norm(encoder.network) else [ADAMW]


def recipe_steps(images: int) -> int:
    """The steps that the recipe takes on this number of training images."""
    per_epoch = max(1, images // reduced(OPTIM.batch_size, images))
    return per_epoch * max(int(OPTIM.epochs), math.ceil(LEAST_STEPS / per_epoch))


def sizes(encoder: Encoder) -> tuple[int, int]:
    """The short side and crop of evaluation for the smallest of SIDES that the network takes."""
    for side in SIDES:
        with suppress(ValueError):
            check_size("the encoder", encoder.network, side, "the trial")
            return max(RESIZE, side * 8 // 7), side
    raise ValueError(f"the encoder takes no images of {', '.join(map(str, SIDES))} px; choose another one")


def adapted(
    encoder: Encoder,
    images: Sequence[np.ndarray],
    optimizer: optim.Config,
    seconds: float,
    shown: Progress,
) -> tuple[Encoder, int, float]:
    """A copy of the encoder, trained for the steps of the recipe, or as many as these seconds allow.

    Args:
        images: (H, W, 3) uint8 each; two or more.

    Returns:
        The copy, the number of steps, and the seconds that one took.
    """
    with machine.settings_restored(), torch.random.fork_rng():
        here = machine.find("fp32", deterministic=False)
        plan = Plan(len(images), reduced(OPTIM.batch_size, len(images)), seed=0)
        view = VIEW.model_copy(update={"size": sizes(encoder)[1]})
        data = TrainSet(cast("Reader", InMemory(images)), encoder.transform, [view], plan)
        torch.manual_seed(0)
        network = copy.deepcopy(encoder.network).float().requires_grad_(True)
        method = simclr.Method(METHOD, Setup(network, 0.1, Whole(kind="whole"), 1, 0, len(images)))
        task = PretrainingTask(method, dcl, dcl.Config(kind="dcl"), METHOD.scale, here)
        config = optimizer.model_copy(update={"batch_size": plan.batch_size})
        each = _seconds(here.place(copy.deepcopy(task)), data, config)
        steps = min(recipe_steps(len(images)), max(1, int(seconds / each)))
        began = time.monotonic()
        _train(here.place(task), data, config, steps, shown)
        each = (time.monotonic() - began) / steps
    return Encoder(network, encoder.transform, encoder.architecture, config=encoder.config), steps, each


def _seconds(task: PretrainingTask, data: TrainSet, config: optim.Config) -> float:
    """What a step takes, after a first one."""
    quiet = Progress("", Console(quiet=True))
    _train(task, data, config, 1, quiet)
    began = time.monotonic()
    _train(task, data, config, TIMED, quiet)
    return (time.monotonic() - began) / TIMED


def _train(task: PretrainingTask, data: TrainSet, config: optim.Config, steps: int, shown: Progress) -> None:
    config = config.model_copy(update={"epochs": steps / data.plan.steps_per_epoch})
    train(task, data, config, optim.build(config, [optim.Part(task)]), progress=shown)
