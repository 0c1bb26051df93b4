"""Short trainings of a tiny network, and their checkpoints."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cl.config import Params
from cl.console.progress import Progress
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.runtime.distributed import rank, ranks
from cl.runtime.machine import Machine
from cl.runtime.tensor_files import load_tensors
from cl.training import optim, tasks
from cl.training.checkpoints import Checkpoints
from cl.training.loop import train
from pipeline.support.locations import transform
from tests.support.bands import CHANGES
from tests.support.tiny import TinyBackbone

BATCH = 40  # of 120 images: 3 steps per epoch


def train_tiny(
    shards: Path,
    params: Params,
    here: Machine,
    progress: Progress,
    *,
    checkpoints: Checkpoints | None = None,
    settings: dict[str, Any] | None = None,
    **arguments: Any,
) -> tuple[tasks.SupervisedTask, list[dict[str, Any]]]:
    """Train the tiny network with labels, by default for four epochs; the task and its rows."""
    torch.manual_seed(0)
    reader = Reader(shards, "train")
    seen = transform(params.dataset, reader)
    task = tasks.SupervisedTask(TinyBackbone(seen.channels), tasks.classifier(8, 20), here)
    training = params.baselines["supervised"].training
    config = training.optim.model_copy(update={"epochs": 4, "batch_size": BATCH, **(settings or {})})
    views = list(training.views.values())
    if seen.bands:
        views = [view.model_copy(update={"bands": CHANGES}) for view in views]
    plan = Plan(len(reader), config.batch_size, 0, rank(), ranks())
    data = TrainSet(reader, seen, views, plan)
    optimizer = optim.build(config, [optim.Part(task)])
    rows = train(task, data, config, optimizer, progress=progress, checkpoints=checkpoints, **arguments)
    return task, rows


def models(folder: Path) -> dict[str, dict[str, Tensor]]:
    """What a pretraining in the folder has written."""
    names = ("backbone", "method", "optimizer")
    return {name: load_tensors(folder / f"models/{name}.safetensors")[0] for name in names}


def assert_same_bits(found: dict[str, dict[str, Tensor]], expected: dict[str, dict[str, Tensor]]) -> None:
    """Two `models` are equal."""
    for name, tensors in found.items():
        assert tensors.keys() == expected[name].keys()
        assert all(torch.equal(tensor, expected[name][key]) for key, tensor in tensors.items()), name


def newest_step(scratch: Path) -> int:
    """The step of the newest checkpoint anywhere in the folder, or 0."""
    names = [name for _, _, files in os.walk(scratch) for name in files if name.startswith("step-")]
    return max((int(name.removeprefix("step-").removesuffix(".safetensors")) for name in names), default=0)
