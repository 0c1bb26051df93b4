"""The training loop, for pretraining, baselines and the evaluations that train."""

import math
import signal
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from cl.console.progress import Meter, Progress
from cl.console.stop import StoppedError, signals
from cl.data.order import Plan
from cl.runtime.distributed import any_rank, gather, rank, ranks
from cl.training import optim
from cl.training.checkpoints import Checkpoints
from cl.training.tasks import Task


class Data(Protocol):
    """What is trained on: a batch for each step, and how it becomes the views and labels that a task takes."""

    plan: Plan

    def batches(self, start: int, stop: int, workers: int) -> Iterator[Any]:
        """The batches of steps start to stop - 1."""

    def inputs(self, device: torch.device) -> Callable[[Any], Any]:
        """What turns a batch into the input of the task, on the device: for an encoder a `cl.batch.Batch`."""


def train(
    task: Task,
    data: Data,
    config: optim.Config,
    optimizer: Optimizer,
    *,
    progress: Progress,
    checkpoints: Checkpoints | None = None,
    each_epoch: Callable[[int], dict[str, float]] | None = None,
) -> list[dict[str, Any]]:
    """Train `task` in place and return a row for each epoch: epoch, step, loss, lr, gradient_norm, images_per_second, ...

    Every process of a run calls it; rows and weights are the same on all.

    Args:
        checkpoints: where the run saves itself, and from where it goes on if it finds something.
        each_epoch: called in eval mode at the end of each epoch; what it returns joins the row.

    Raises:
        FloatingPointError: a loss or a gradient is not finite; the last checkpoint is kept.
        StoppedError: a signal asked for it.
        ValueError: the processes find different checkpoints.
    """
    steps_per_epoch = data.plan.steps_per_epoch
    steps = max(1, round(config.epochs * steps_per_epoch))
    start, history = _restore(checkpoints, task, optimizer, progress) if checkpoints else (0, {})
    rows: list[dict[str, Any]] = history.get("rows", [])
    ledger = Ledger(history.get("losses", []), history.get("norms", []), task.remedy)
    inputs = data.inputs(task.machine.device)
    model = replicated(task)
    task.train()
    with progress.task(steps, start, steps_per_epoch) as meter, signals() as stop:
        if start:
            meter.going_on(history["used"])
        for step, batch in enumerate(meter.waiting(data.batches(start, steps, task.machine.workers)), start):
            lr = optim.set_lr(optimizer, config.lr(), optim.lr_factor(config, step, steps, steps_per_epoch))
            if step % steps_per_epoch == 0:
                task.begin_epoch(step // steps_per_epoch)
            task.begin_step(step, step / steps)
            loss = model(inputs(batch))
            loss.backward()
            norm = optim.clip_gradients(optimizer, config.clip)
            optimizer.step()
            optimizer.zero_grad()
            done = step + 1
            task.after_step(done / steps)
            ledger.add(step, lr, loss, norm, task.largest_logit)
            stopping, saving = any_rank(bool(stop), rank() == 0 and bool(checkpoints and checkpoints.due()))
            ends = done % steps_per_epoch == 0 or done == steps
            if ends or saving or stopping or done % task.machine.read_every == 0:
                ledger.flush()
            meter.step(data.plan.batch_size, ledger.losses[-1] if ledger.losses else math.nan, lr)
            if ends:
                rows.append(
                    {"epoch": len(rows) + 1, "step": done, **ledger.means(), "lr": lr, **meter.rates()}
                )
                if each_epoch:
                    rows[-1] |= _watched(task, meter, each_epoch, len(rows))
                meter.epoch(rows[-1])
            if checkpoints and (saving or stopping or done == steps) and rank() == 0:
                kept = {"rows": rows, "losses": ledger.losses, "norms": ledger.norms, "used": meter.used()}
                checkpoints.save(done, task, optimizer, kept)
            if stopping and done < steps:
                any_rank()  # the others wait until it is saved
                raise StoppedError(stop[0] if stop else signal.SIGTERM, done, saved=checkpoints is not None)
    task.eval()
    return rows


def _watched(
    task: Task, meter: Meter, each_epoch: Callable[[int], dict[str, float]], epoch: int
) -> dict[str, float]:
    """What is measured in eval mode after an epoch."""
    task.eval()
    measured = meter.watching(lambda: each_epoch(epoch))
    task.train()
    return measured


def _restore(
    checkpoints: Checkpoints, task: Task, optimizer: Optimizer, progress: Progress
) -> tuple[int, dict[str, Any]]:
    """Rank 0 first, as it removes damaged files."""
    start, history = 0, dict[str, Any]()
    for turn in (True, False):
        if (rank() == 0) == turn:
            start, history = checkpoints.restore(task, optimizer, progress.say)
        any_rank()  # all wait for each other
    found = gather(torch.tensor([start], device=task.machine.device)).tolist()
    if len(set(found)) > 1:
        raise ValueError(
            f"process 0 continues after step {found[0]}, another one after step {next(x for x in found if x != found[0])}: "
            f"CL_SCRATCH ({checkpoints.folder.parent}) must be one folder that all nodes share"
        )
    return start, history


class Ledger:
    """Loss, norm of the gradient and largest logit of every step, which stay on the device until someone looks."""

    def __init__(self, losses: list[float], norms: list[float], remedy: str) -> None:
        self.losses, self.norms = losses, norms  # of the epoch's steps that were looked at
        self.remedy = remedy
        self._steps: list[tuple[int, float]] = []
        self._unread: list[Tensor] = []

    def add(self, step: int, lr: float, loss: Tensor, norm: Tensor, largest_logit: Tensor) -> None:
        """Note a step; no step waits for the device."""
        self._steps.append((step, lr))
        self._unread.append(torch.stack([x.detach().float() for x in (loss, norm, largest_logit)]))

    def flush(self) -> None:
        """Read what was noted on all ranks.

        Raises:
            FloatingPointError: naming the first step whose loss or gradient is not finite.
        """
        if not self._unread:
            return
        table = gather(torch.stack(self._unread)[None])  # (W, steps, 3)
        losses, norms, logits = table[..., 0].mean(0), table[..., 1].amax(0), table[..., 2].amax(0)
        for (step, lr), loss, norm, logit in zip(
            self._steps, losses.tolist(), norms.tolist(), logits.tolist(), strict=True
        ):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                what = (
                    f"loss is {loss:.4g}"
                    if not math.isfinite(loss)
                    else f"norm of the gradient is {norm:.4g}"
                )
                raise FloatingPointError(
                    f"the {what} at step {step} (loss {loss:.4g}, largest logit {logit:.4g}, learning rate {lr:.3g}); the "
                    f"weights of the last checkpoint are kept. {self.remedy}"
                )
            self.losses.append(loss)
            self.norms.append(norm)
        self._steps.clear()
        self._unread.clear()

    def means(self) -> dict[str, float]:
        """Loss and norm of the gradient, averaged over the steps looked at; they are forgotten."""
        means = {
            "loss": sum(self.losses) / len(self.losses),
            "gradient_norm": sum(self.norms) / len(self.norms),
        }
        self.losses, self.norms = [], []
        return means


def replicated(task: Task) -> nn.Module:
    """The task whose gradients are averaged over all ranks."""
    return (
        task
        if ranks() == 1
        else DistributedDataParallel(task, broadcast_buffers=False, gradient_as_bucket_view=True)
    )
