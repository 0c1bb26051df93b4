"""What checks and measurements train: a fixed batch, any method and loss, the embedded data set."""

import time
from collections.abc import Callable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import in_process
from benchmarks.combinations import Cell, cell, cells, methods
from benchmarks.gpu.session import Session
from benchmarks.in_process import silent
from cl import config
from cl.config import Params
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.to_device import HostBatch, ToDevice
from cl.data.views import RandomNumbers, View, draw_colour_params
from cl.objective.batch import Batch
from cl.pretraining.task import PretrainingTask
from cl.runtime.distributed import local_part, mean_over_ranks
from cl.runtime.machine import Machine
from cl.training.checkpoints import Checkpoints
from cl.training.loop import replicated, train
from cl.training.start import Start
from pipeline.support.locations import transform
from pipeline.support.pretraining import build, prepare

CPU = torch.device("cpu")
STEPS, BATCH, LR = 3, 32, 0.05  # of a trajectory
BN_GROUP = 8  # images, where not global


def random_images(view: View, count: int) -> tuple[Tensor, Tensor]:
    """Crops (count, 3, S, S) uint8 as data workers make them, and their colour parameters (count, DRAWS)."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, view.size, view.size, 3), dtype=torch.uint8, generator=rng)
    colour_params = [draw_colour_params(view, RandomNumbers(0, 0, image, 0)) for image in range(count)]
    return images.permute(0, 3, 1, 2), torch.tensor(colour_params, dtype=torch.float32)


class RepeatedBatch:
    """`cl.training.loop.Data` with the same batch in every step; times the steps after the first `warm`.

    prepared: the batch is on the device and augmented beforehand; otherwise in every step, as in a run.
    """

    def __init__(self, params: Params, session: Session, steps: int, warm: int, prepared: bool) -> None:
        size = params.optim.batch_size
        self.plan = Plan(size * 10**6, size, 0)
        self.session, self.steps, self.warm, self.prepared = session, steps, warm, prepared
        self.views = [view for view in params.views.values() for _ in range(view.count)]
        self.transform = transform(params.dataset)
        images, colour_params = zip(*(random_images(view, size) for view in self.views), strict=True)
        labels, positions = torch.zeros(size, dtype=torch.int64), torch.arange(size)
        self.batch = HostBatch(list(images), torch.stack(colour_params), labels, positions, None, None, None)
        self.seconds = float("nan")

    def batches(self, start: int, stop: int, workers: int) -> Iterator[HostBatch]:
        """The same batch for all steps."""
        began = 0.0
        for step in range(start, stop):
            if step == self.warm:
                self.session.synchronise()
                began = time.perf_counter()
            yield self.batch
        self.session.synchronise()
        self.seconds = (time.perf_counter() - began) / (self.steps - self.warm)

    def inputs(self, here: Machine) -> Callable[[HostBatch], Batch]:
        """What augments the batch on the device, or returns the one prepared."""
        augment = ToDevice(self.transform, self.views, here)
        if not self.prepared:
            return augment
        ready = augment(self.batch)
        return lambda _: ready


def combinations(session: Session, each: int | None = None) -> Iterator[Cell]:
    """All combinations of method, loss, views and patches, or `each` of every method; on a CPU, one.

    One of each method comes first, then another of each, and so on.
    """
    if session.tiny:
        yield cell("moco_v2", "infonce", "two views", "whole")
        return
    fitting = [(cell for cell in cells(method) if not cell.refusal) for method in methods()]
    for several in zip_longest(*(islice(found, each) for found in fitting)):
        yield from filter(None, several)


def params_of(session: Session, cell: Cell, number: int) -> Params:
    """The parameters of combination `number`, with a small batch of small views."""
    values: dict[str, Any] = dict(cell.values)
    if values["bn_group"] != "global" or number % 2:  # some methods shuffle between groups, and need several
        values["bn_group"] = BN_GROUP
    values["optim"] = {**values["optim"], "batch_size": BATCH}
    stem = "imagenet" if session.tiny else "small"
    values["backbone"] = {**values["backbone"], "stem": stem, "width": 0.25}  # the CPU takes most of the time
    values["views"] = {name: {**view, "size": view["size"] // 2} for name, view in values["views"].items()}
    return config.check(values)


def trajectory(params: Params, device: torch.device, dtype: torch.dtype, steps: int = STEPS) -> list[Tensor]:
    """After each step, how far every number of the state has moved, and the loss; float64 on the CPU.

    Ranks share the batch, and all get the same result.
    """
    task = build(params, Machine(device, 0, "fp32"), BATCH).to(dtype).train()
    before = _flat(task).nan_to_num()  # an estimate that the first step makes is NaN before it
    model = replicated(task)
    trained = [parameter for parameter in task.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, LR, momentum=0.9)
    moves = []
    for step in range(steps):
        task.begin_step(step, step / steps)
        loss = model(_random_batch(params, step, device, dtype))
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        task.after_step((step + 1) / steps)
        mean = mean_over_ranks(loss.detach()).double().cpu()
        moves.append(torch.cat([_flat(task) - before, mean[None]]))
    return moves


def _flat(task: PretrainingTask) -> Tensor:
    return torch.cat([value.detach().double().cpu().flatten() for value in task.state_dict().values()])


def _random_batch(params: Params, step: int, device: torch.device, dtype: torch.dtype) -> Batch:
    rng = torch.Generator().manual_seed(step)
    views = [
        torch.randn(BATCH, 3, view.size, view.size, dtype=torch.float64, generator=rng)
        for view in params.views.values()
        for _ in range(view.count)
    ]
    views = [local_part(x).to(device, dtype, memory_format=torch.channels_last) for x in views]
    positions = local_part(torch.arange(BATCH)).to(device)
    return Batch(views, torch.zeros_like(positions), positions)


def write_shards(params: Params, folder: Path) -> Path:
    """The shards of the embedded data set."""
    in_process.shards(params, folder / "shards")
    return folder / "shards"


def pretrain(
    params: Params, here: Machine, shards: Path, checkpoints: Checkpoints | None = None
) -> tuple[PretrainingTask, list[dict[str, Any]]]:
    """The task after the training loop of a run, and the rows of its epochs."""
    reader = Reader(shards, "train")
    task, optimizer, data = prepare(params, here, reader, Start())
    rows = train(task, data, params.optim, optimizer, progress=silent(), checkpoints=checkpoints)
    return task, rows
