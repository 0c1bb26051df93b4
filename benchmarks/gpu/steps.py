"""Steps of the training loop on a GPU: how fast they are, and what takes their time."""

import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.roofline.operations import GPUS
from benchmarks.gpu.roofline.trace import trace
from benchmarks.gpu.session import Session
from benchmarks.gpu.training import RepeatedBatch
from benchmarks.in_process import silent
from benchmarks.parameters import parameters
from cl.config import Params
from cl.networks.batch_norm import GroupBatchNorm
from cl.pretraining.task import PretrainingTask
from cl.runtime import machine
from cl.training import optim
from cl.training.loop import train
from pipeline.support.pretraining import build

LARGE = ("backbone=resnet50", "views=mocov2", "loss=infonce", "bn_group=global")
SIMCLR = (*LARGE, "method=simclr_imagenet")
CIFAR = ("recipe=dcl/table3_cifar10",)
TINY = ("backbone=resnet18", "views.random.size=16", "optim.batch_size=4", "precision=fp32")


class Case(NamedTuple):
    """A run of the training loop.

    setting: a choice, whose gain over the case before it of the same name is measured.
    in_loop: the loop augments each batch, instead of once beforehand.
    spanning: batch norm is computed as on several GPUs, with NCCL's calls.
    """

    name: str
    overrides: tuple[str, ...]
    batch: int = 256
    precision: str = "bf16"
    setting: str = ""
    in_loop: bool = False
    spanning: bool = False

    def params(self, session: Session) -> Params:
        """Its parameters, tiny ones on a CPU."""
        sizes = (f"optim.batch_size={self.batch}", f"precision={self.precision}")
        setting = (self.setting,) if self.setting else ()
        return parameters(*self.overrides, *setting, *(TINY if session.tiny else sizes))

    def title(self, params: Params) -> str:
        """What distinguishes it."""
        return ", ".join(
            filter(None, [self.name, self.setting, f"{params.optim.batch_size} images", params.precision])
        )


CASES = [
    Case("ResNet-50 SimCLR", SIMCLR),
    Case("ResNet-18 CIFAR", CIFAR),
    Case("ResNet-50 SimCLR, augmented in the loop", SIMCLR, in_loop=True),
    Case("ResNet-18 CIFAR, augmented in the loop", CIFAR, in_loop=True),
    Case("ResNet-50 SimCLR, batch norm as on several GPUs", SIMCLR, spanning=True),
    Case("ResNet-50 MoCo v2, bn_group=32", (*LARGE, "bn_group=32", "method=moco_v2_imagenet")),
    Case("ResNet-50 MoCo v3", (*LARGE, "method=moco_v3_imagenet")),
    Case("ResNet-50 SimCLR", SIMCLR, batch=512),
    Case("ResNet-18 CIFAR, augmented in the loop", CIFAR, precision="fp32", in_loop=True),
    Case("ResNet-50 SimCLR", SIMCLR, precision="tf32"),
    Case("ResNet-50 SimCLR", SIMCLR, batch=128, precision="fp32"),
]
COMPILED = [
    Case(name, overrides, setting="optim.compile=true")
    for name, overrides in (("ResNet-18 CIFAR", CIFAR), ("ResNet-50 SimCLR", SIMCLR))
]
TINY_CASES = [
    Case("ResNet-50 SimCLR", SIMCLR),
    Case("ResNet-50 SimCLR", SIMCLR, setting="optim.weight_decay=0", in_loop=True, spanning=True),
]


class Spanning(GroupBatchNorm):
    """Batch norm over ranks, even if a group is on one rank."""

    def spans_ranks(self) -> bool:
        return True


def _span(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            setattr(module, name, Spanning(child, 1))
        else:
            _span(child)


@contextmanager
def process_group(session: Session) -> Iterator[None]:
    """A process group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        backend = "gloo" if session.tiny else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def step(session: Session) -> None:
    """Steps of the training loop: images per second, TFLOP/s of convolutions and matrix products, memory.

    An image counts once, with all its views.
    """
    for case in session.in_time(TINY_CASES if session.tiny else CASES):
        _measure(session, case)


def compiled(session: Session) -> None:
    """The same steps with a compiled backbone, and how long they take to start."""
    if session.tiny:
        session.report("steps", note="skipped: compiling takes minutes without a GPU")
        return
    for case in session.in_time(COMPILED):
        _measure(session, case)


def _measure(session: Session, case: Case) -> None:
    params = case.params(session)
    what = case.title(params)
    group = process_group(session) if case.spanning else nullcontext()
    with session.attempt(what), group:
        seconds, mebibytes, start = train_steps(session, params, case)
        milliseconds = 1000 * seconds
        session.report(
            what,
            images_per_second=params.optim.batch_size / seconds,
            milliseconds=milliseconds,
            **_compared(session, case, params, milliseconds),
            tflops=_flops(session, params) / seconds / 1e12,
            gib=mebibytes / 1024,
            seconds_to_start=start,
        )


def _compared(session: Session, case: Case, params: Params, milliseconds: float) -> dict[str, Any]:
    """The least time of such a step, and the gain over the case without the setting."""
    plain = case._replace(setting="").title(params)
    compared = {}
    if bound := session.found("speed.floor", plain).get("milliseconds"):
        compared = {"floor": bound, "times_the_floor": milliseconds / bound}
    if case.setting and (before := session.found("speed.step", plain).get("milliseconds")):
        compared |= {"setting": case.setting, "times_as_fast": before / milliseconds}
    return compared


def floor(session: Session) -> None:
    """The least time that these steps take on this card, and the least memory: bounds, not measurements."""
    name = session.found("check.card", "card").get("gpu", "").lower()
    card = next((kind for kind in GPUS if kind in name), "h100" if session.tiny else None)
    if card is None:
        session.report("steps", note=f"the rates of this card are unknown; known are {', '.join(GPUS)}")
        return
    cases = TINY_CASES if session.tiny else CASES
    for case in session.in_time(case for case in cases if not case.spanning):
        params = case.params(session)
        with session.attempt(case.title(params)):
            gpu = trace(params)
            milliseconds = 1000 * gpu.floor(GPUS[card])
            session.report(case.title(params), card=card, milliseconds=milliseconds, gib=gpu.peak / 2**30)


def _task(session: Session, params: Params) -> PretrainingTask:
    here = machine.find(params.precision, deterministic=False)
    return build(params, here, params.optim.batch_size)


def train_steps(session: Session, params: Params, case: Case) -> tuple[float, float, float]:
    """Seconds of a step, MiB, and the seconds that a run takes beyond its steps."""
    began = time.monotonic()
    warm, steps = (1, 3) if session.tiny else (8, 28)
    task = _task(session, params)
    if case.spanning:
        _span(task)
    data = RepeatedBatch(params, session, steps, warm, prepared=not case.in_loop)
    changes = {"epochs": steps / data.plan.steps_per_epoch, "warmup_epochs": 0, "warmup_start": 0.0}
    settings = params.optim.model_copy(update=changes)
    optimizer = optim.build(settings, [optim.Part(task)])
    mebibytes = session.mebibytes(lambda: train(task, data, settings, optimizer, progress=silent()))
    return data.seconds, mebibytes, time.monotonic() - began - steps * data.seconds


def _flops(session: Session, params: Params) -> float:
    """Of the convolutions and matrix products of a step, extrapolated from a few images."""
    few = 2 if session.tiny else 16
    changes = {"batch_size": few, "compile": False}
    small = params.model_copy(update={"optim": params.optim.model_copy(update=changes), "bn_group": "global"})
    data = RepeatedBatch(small, session, 1, 0, prepared=True)
    task = _task(session, small)
    batch = data.inputs(task.machine)(data.batch)
    with FlopCounterMode(display=False) as counter:
        task(batch).backward()
    return counter.get_total_flops() / few * params.optim.batch_size


def profile(session: Session) -> None:
    """One step under the profiler: kernel launches, slowest kernels, and the lines where the CPU waits."""
    cases = {"ResNet-50 SimCLR": SIMCLR, "ResNet-18 CIFAR": CIFAR}
    for name, overrides in list(cases.items())[: 1 if session.tiny else 2]:
        with session.attempt(name):
            sizes = TINY if session.tiny else ("optim.batch_size=256", "precision=bf16")
            params = parameters(*overrides, *sizes)
            one = _one_step(session, params)
            found, numbers = session.profile(one)
            session.report(name, milliseconds=1000 * session.seconds(one), **numbers)
            order = "self_cpu_time_total" if session.tiny else "self_device_time_total"
            print(found.key_averages().table(sort_by=order, row_limit=20, max_name_column_width=90))
            if not session.tiny:
                waits = [f"{line} {count}" for line, count in _waits(one).items()]
                session.report(f"{name}: waits by line", note=", ".join(waits) or "none")


def _one_step(session: Session, params: Params) -> Callable[[], None]:
    task = _task(session, params).train()
    data = RepeatedBatch(params, session, 1, 0, prepared=False)
    inputs = data.inputs(task.machine)
    optimizer = optim.build(params.optim, [optim.Part(task)])

    def one() -> None:
        task.begin_step(0, 0.0)
        task(inputs(data.batch)).backward()
        optim.clip_gradients(optimizer, params.optim)
        optimizer.step()
        optimizer.zero_grad()
        task.after_step(0.0)

    return one


def _waits(function: Callable[[], None]) -> dict[str, int]:
    """How often the CPU waits for the GPU, by file and line."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return dict(Counter(f"{Path(warning.filename).name}:{warning.lineno}" for warning in caught))
