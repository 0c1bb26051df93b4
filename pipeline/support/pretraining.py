"""What pretraining is made of; `pipeline.plan` and benchmarks use it as `pretrain` does."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from cl.config import Params, with_arm
from cl.config.rules import warnings
from cl.config.rules.data import neighbours
from cl.config.rules.training import microbatches_hold_bn_groups
from cl.console.command import is_main_process
from cl.console.progress import Progress
from cl.data.device_crops import DeviceTrainSet, resident
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.methods import BaseMethod, Setup
from cl.networks import backbones, patches
from cl.networks.passes import compile_forward, encode_in_microbatches, encoders
from cl.networks.teacher import Teacher
from cl.pretraining.monitor import measure_epoch
from cl.pretraining.task import PretrainingTask
from cl.runtime import machine
from cl.runtime.distributed import rank, ranks
from cl.runtime.machine import Machine
from cl.runtime.registry import module_of
from cl.runtime.tensor_files import save_tensors
from cl.training import optim, start
from cl.training.start import Start
from pipeline.support import locations, provenance

# For `optim.compile=auto`: pixels of the largest view; images in all epochs, about 5 minutes of a ResNet-50.
COMPILED_SIZE, COMPILED_IMAGES = 96, 1_000_000


def warn(params: Params, progress: Progress) -> None:
    """Say what is unusual about the parameters, and what later stages will need."""
    if params.precision == "bf16" and machine.slow_bf16():
        progress.say("precision=bf16 is emulated here, many times slower than fp32: choose precision=fp32")
    if untested := machine.untested_gpu():
        progress.say(untested)
    for sentence in (*warnings(params), *locations.missing(params.transfers)):
        progress.say(sentence)


def decide_compile(params: Params, here: Machine, images: int) -> Params:
    """The parameters with `optim.compile` decided, if it is auto: true where compiling saves time."""
    if params.optim.compile != "auto":
        return params
    large = max(view.size for view in params.views.values()) >= COMPILED_SIZE
    long = images * params.optim.epochs >= COMPILED_IMAGES
    whole = getattr(params.patches, "stage", None) not in patches.STITCHED
    pays = here.device.type == "cuda" and large and long and whole and bool(shutil.which(_compiler()))
    return params.model_copy(update={"optim": params.optim.model_copy(update={"compile": pays})})


def load_start(params: Params) -> Start:
    """The weights that `init` or `start_from` name; ValueError if they do not fit the parameters."""
    provenance.require(locations.START)
    weights = start.load(locations.START)
    weights.check(params.start_hashes, provenance.declared("pretrain")[1], locations.manifest_hash())
    return weights


def arms(params: Params, val: Reader) -> list[Params]:
    """The parameters of each training: one, or more where labels of validation images can judge them."""
    several = params.hand_over == "better" and len(val.labelled) > 0
    return [params, *(with_arm(params, changes) for changes in params.arms if several)]


def prepare(
    params: Params, here: Machine, bank: Reader, start: Start, teacher: Teacher | None = None
) -> tuple[PretrainingTask, Optimizer, TrainSet]:
    """The task, its optimizer and the training images before the first step."""
    bands = bank.manifest.bands
    start.check_bands(bands.names if bands else ())
    task = build(params, here, len(bank), start, teacher)
    built = optimizer(params, task)
    start.load_state(task.method, built)
    together = neighbours(params.dataset, bank)
    plan = Plan(len(bank), params.optim.batch_size, params.seed, rank(), ranks(), start.epochs, together)
    transform = locations.transform(params.dataset, bank)
    return task, built, TrainSet(bank, transform, list(params.views.values()), plan)


def build(
    params: Params, here: Machine, images: int, start: Start | None = None, teacher: Teacher | None = None
) -> PretrainingTask:
    """The method with its loss on the device, from the seed, and with the backbone of `start`."""
    microbatches_hold_bn_groups(params, ranks())
    torch.manual_seed(params.seed)
    backbone = backbones.build(params.backbone)
    if start:
        start.load_backbone(backbone, params.backbone)
    within = "within" in params.dataset.value_columns
    about = params.temperature, params.patches, params.bn_groups, params.seed, images, within, teacher
    setup = Setup(backbone, *about)
    method = module_of("methods", params.method.kind).Method(params.method, setup)
    if params.optim.compile in (True, "graphs"):
        compile_encoders(method, graphs=params.optim.compile == "graphs")
    encode_in_microbatches(method, params.optim.microbatches)
    loss = module_of("losses", params.loss.kind)
    task = PretrainingTask(method, loss, params.loss, params.method.scale, here)
    task.captured = params.optim.compile == "graphs"
    return here.place(task)


def compile_encoders(method: BaseMethod, *, graphs: bool = False) -> None:
    """Run each backbone through torch.compile, as a whole; see `compile_forward`."""
    if graphs and ranks() > 1:
        raise ValueError(f"optim.compile=graphs is for one process, found {ranks()}; choose compile=true")
    if not shutil.which(_compiler()):
        raise ValueError(
            f"compiling needs a C++ compiler, and {_compiler()} was not found; install one "
            "(in the image: build it with WITH_COMPILER=1), or choose optim.compile=false"
        )
    for network in encoders(method):
        compile_forward(network, graphs=graphs)


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


def cropped(params: Params, data: TrainSet, here: Machine) -> TrainSet:
    """The same batches, cropped where `optim.cropping` says."""
    if params.optim.cropping == "workers":
        return data
    images = resident(data.reader, here)
    return DeviceTrainSet(images, data.reader, data.transform, list(params.views.values()), data.plan)


def optimizer(params: Params, task: PretrainingTask) -> Optimizer:
    """What updates the task's parameters."""
    fixed: Any = task.method.predictor if params.optim.predictor_lr == "fixed" else None
    part = partial(optim.Part, rate_1d=params.optim.lr_scale_1d)
    backbone, scale = task.method.backbone, params.optim.backbone_lr_scale
    parts = [part(task)] if scale == 1 else [part(backbone, scale), part(task, without=backbone)]
    return optim.build(params.optim, parts, fixed)


def monitoring(
    params: Params, task: PretrainingTask, data: TrainSet, queries: Reader
) -> Callable[..., dict[str, float]]:
    """The measurements after each epoch; images that take little memory are read only once."""
    return partial(
        measure_epoch, task, params.optim.monitor, data.reader, queries, transform=data.transform, cache={}
    )


def keep(params: Params, method: nn.Module, epoch: int, folder: Path) -> None:
    """Save the method to `folder`/<epoch>.safetensors, if `optim.keep_every` names this epoch."""
    every = params.optim.keep_every
    if every and epoch % every == 0 and is_main_process():
        save_tensors(method.state_dict(), folder / f"{epoch}.safetensors")
