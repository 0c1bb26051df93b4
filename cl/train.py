"""The training loop, for pretraining, baselines and the evaluations that train."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cl import optim
from cl.augment import augment
from cl.checkpoint import Checkpoints
from cl.progress import Progress
from cl.reader import Batch, TrainSet
from cl.sources import Source
from cl.stop import StoppedError, signals
from cl.tasks import Task


def train(
    task: Task,
    data: TrainSet,
    config: optim.Config,
    optimizer: Optimizer,
    *,
    source: Source,
    progress: Progress,
    checkpoints: Checkpoints | None = None,
    each_epoch: Callable[[int], dict[str, float]] | None = None,
) -> list[dict[str, Any]]:
    """Train `task` in place and return a row for each epoch: epoch, step, loss, lr, images_per_second, waiting, ...

    Args:
        checkpoints: where the run saves itself, and from where it goes on if it finds something.
        each_epoch: called in eval mode at the end of each epoch; what it returns joins the row.

    Raises:
        FloatingPointError: the loss is not finite; the last checkpoint is kept.
        StoppedError: a signal asked for it.
    """
    steps_per_epoch = data.plan.steps_per_epoch
    steps = max(1, round(config.epochs * steps_per_epoch))
    start, history = checkpoints.restore(task, optimizer) if checkpoints else (0, {})
    rows: list[dict[str, Any]] = history.get("rows", [])
    losses: list[float] = history.get("losses", [])
    device = task.machine.device
    inputs = Inputs(source, data, device)
    task.train()
    with progress.task(steps, start, steps_per_epoch) as meter, signals() as stop:
        for step, batch in enumerate(meter.waiting(data.batches(start, steps, task.machine.workers)), start):
            lr = optim.set_lr(optimizer, config.lr(), optim.lr_factor(config, step, steps, steps_per_epoch))
            task.begin_step(step, step / steps)
            loss = task(inputs(batch), batch.labels.to(device))
            losses.append(_finite(float(loss.detach()), step, lr))
            loss.backward()
            if config.clip:
                nn.utils.clip_grad_norm_(task.parameters(), config.clip)
            optimizer.step()
            optimizer.zero_grad()
            task.after_step((step + 1) / steps)
            meter.step(len(batch.labels), losses[-1])
            if (step + 1) % steps_per_epoch == 0 or step + 1 == steps:
                row = {"epoch": len(rows) + 1, "step": step + 1, "loss": sum(losses) / len(losses), "lr": lr, **meter.rates()}
                if each_epoch:
                    task.eval()
                    row |= each_epoch(len(rows) + 1)
                    task.train()
                rows.append(row)
                losses.clear()
                meter.epoch(row)
            if checkpoints and (checkpoints.due() or step + 1 == steps or stop):
                checkpoints.save(step + 1, task, optimizer, {"rows": rows, "losses": losses})
            if stop and step + 1 < steps:
                raise StoppedError(stop[0], step + 1, saved=checkpoints is not None)
    task.eval()
    return rows


class Inputs:
    """Batches on the device, augmented and normalised."""

    def __init__(self, source: Source, data: TrainSet, device: torch.device) -> None:
        self.device = device
        self.views = data.views
        self.mean, self.std = normalisation(source, device)

    def __call__(self, batch: Batch) -> list[Tensor]:
        return [
            augment(images.to(self.device, non_blocking=True), drawn, view, mean=self.mean, std=self.std)
            for images, drawn, view in zip(batch.images, batch.drawn, self.views, strict=True)
        ]


def normalisation(source: Source, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (3, 1, 1) of RGB in [0, 1]."""
    return tuple(torch.tensor(value, device=device).view(3, 1, 1) for value in (source.mean, source.std))  # type: ignore[return-value]


def _finite(loss: float, step: int, lr: float) -> float:
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"the loss is {loss} at step {step} with learning rate {lr:.3g}; the weights of the last checkpoint are kept. "
            "Lower optim.base_lr, lengthen optim.warmup_epochs, or raise the temperature"
        )
    return loss
