"""The training loop, for pretraining, baselines and the evaluations that train."""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from cl.console.progress import Progress
from cl.console.stop import StoppedError, signals
from cl.data.order import Plan
from cl.runtime.distributed import gather, gradient_group, max_over_ranks, rank, ranks
from cl.runtime.machine import Machine, to_host
from cl.training import optim
from cl.training.checkpoints import Checkpoints
from cl.training.tasks import Task

ASK_SECONDS = 5.0  # between the moments at which the processes agree whether to stop or to save


class Data(Protocol):
    """The training data: one batch per step, and the function that turns it into a task's input."""

    plan: Plan

    def batches(self, start: int, stop: int, workers: int) -> Iterator[Any]:
        """The batches of steps start to stop - 1."""

    def inputs(self, here: Machine) -> Callable[[Any], Any]:
        """The function that turns a batch into the task's input on the device; for an encoder, a `Batch`."""


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
    """Train `task` in place; return a row per epoch: epoch, step, loss, lr, gradient_norm, and rates.

    Every process of a run calls it; rows and weights are the same on all. The run resumes from the newest of
    `checkpoints`. `each_epoch(epoch)` is called in eval mode; what it returns is added to the epoch's row.

    Raises:
        FloatingPointError: a loss or a gradient is not finite; the last checkpoint is kept.
        StoppedError: a signal asked the run to stop.
        ValueError: a checkpoint does not fit the task, or the processes found different checkpoints.
    """
    plan, steps_per_epoch = data.plan, data.plan.steps_per_epoch
    steps = max(1, round(config.epochs * steps_per_epoch))
    start, history = _restore(checkpoints, task, optimizer, progress) if checkpoints else (0, {})
    metrics, stop_sync = MetricBuffer(history, task.remedy, plan), StopSync(start, task.machine, checkpoints)
    inputs, model = data.inputs(task.machine), replicated(task.train())
    batches = data.batches(start, steps, task.machine.workers)
    shown = progress.task(steps, start, steps_per_epoch, plan.first_epoch, history)
    with shown as meter, signals() as stop, checkpoints or nullcontext():
        for step, batch in enumerate(meter.waiting(batches), start):
            done = step + 1
            optim.set_decay(optimizer, config, step / steps)
            factor = optim.lr_factor(config, step, steps, steps_per_epoch)
            lr = optim.set_lr(optimizer, config.peak_lr, factor)
            number = plan.first_step + step
            task.begin_step(number, step / steps)
            if number % steps_per_epoch == 0:  # after begin_step: its random numbers come from this step
                task.begin_epoch(number // steps_per_epoch)
            loss, norm = _optimize(model, inputs(batch), optimizer, config)
            task.after_step(done / steps)
            metrics.add(step, lr, task.reported(loss), norm)
            stopping, saving = stop_sync.agree(done, stop)
            epoch_ends = done % steps_per_epoch == 0 or done == steps
            whole = epoch_ends or saving or stopping or task.machine.read_every == 1
            if whole or done % task.machine.read_every == 0:
                metrics.flush(wait=whole)
            meter.step(plan.batch_size, metrics.last_loss(), lr)
            if epoch_ends:
                row = metrics.end_epoch(done, lr, meter.rates())
                if each_epoch:
                    task.eval()
                    row |= each_epoch(row["epoch"])
                    task.train()
                meter.epoch(row)
            if checkpoints and rank() == 0:
                if epoch_ends:
                    checkpoints.publish(metrics.rows)
                if saving or stopping or done == steps:
                    checkpoints.save(done, task, optimizer, {**metrics.state(), "used": meter.used()})
            if stopping and done < steps:
                if checkpoints:
                    checkpoints.finish()
                max_over_ranks()  # wait until rank 0 has saved
                raise StoppedError(stop[0] if stop else signal.SIGTERM, done, saved=checkpoints is not None)
    task.eval()
    return metrics.rows


def _optimize(
    model: nn.Module, batch: Any, optimizer: Optimizer, config: optim.Config
) -> tuple[Tensor, Tensor]:
    """Take one optimizer step; returns the loss and the norm of the gradient before clipping."""
    loss = model(batch)
    loss.backward()
    norm = optim.clip_gradients(optimizer, config)
    optimizer.step()
    optimizer.zero_grad()
    return loss, norm


def _restore(
    checkpoints: Checkpoints, task: Task, optimizer: Optimizer, progress: Progress
) -> tuple[int, dict[str, Any]]:
    """Restore the newest checkpoint; rank 0 does so first, because it removes damaged files."""
    start, history = 0, dict[str, Any]()
    for rank_0_reads in (True, False):
        if (rank() == 0) == rank_0_reads:
            start, history = checkpoints.restore(task, optimizer, progress.say)
        max_over_ranks()  # a barrier
    if rank() == 0:
        checkpoints.publish(history.get("rows", []))
    starts = gather(torch.tensor([start], device=task.machine.device)).tolist()
    if other := [step for step in starts if step != starts[0]]:
        raise ValueError(
            f"process 0 continues after step {starts[0]}, another process after step {other[0]}: "
            f"CL_SCRATCH ({checkpoints.folder.parent}) must be one folder that all nodes share"
        )
    return start, history


class StopSync:
    """Makes all processes stop or save after the same step.

    They communicate every `ASK_SECONDS`, and at least every `machine.read_every` steps.
    """

    def __init__(self, start: int, machine: Machine, checkpoints: Checkpoints | None = None) -> None:
        self.most_steps, self.checkpoints = machine.read_every, checkpoints
        self.asked = self.next = start
        self.since = time.monotonic()

    def agree(self, done: int, signals: list[int]) -> list[bool]:
        """After step `done`: whether any process received a signal, and whether rank 0 must save."""
        stop = bool(signals)
        due = rank() == 0 and self.checkpoints is not None and self.checkpoints.due()
        if ranks() == 1:
            return [stop, due]
        if done < self.next:
            return [False, False]
        now = time.monotonic()
        seconds_per_step = (now - self.since) / max(1, done - self.asked)
        stopping, saving, slowest = max_over_ranks(stop, due, seconds_per_step)
        self.since, self.asked = now, done
        self.next = done + max(1, min(self.most_steps, int(ASK_SECONDS / max(slowest, 1e-9))))
        return [bool(stopping), bool(saving)]


def replicated(task: Task) -> nn.Module:
    """The task, with its gradients averaged over all ranks."""
    if ranks() == 1:
        return task
    # Without `find_unused_parameters`, DDP packs gradients in another order after the first step. A sum over
    # three ranks or more depends on that order, so a resumed run would differ in the last digit.
    return DistributedDataParallel(
        task,
        process_group=gradient_group(),
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
        find_unused_parameters=True,
    )


class MetricBuffer:
    """The losses and the gradient norm of each step, on the device until `flush`; and epoch rows.

    history: what `state` returned in the run to resume, or {}. remedy: advice for a loss that is not finite.
    """

    def __init__(self, history: dict[str, Any], remedy: str, plan: Plan) -> None:
        self.plan = plan
        self.rows: list[dict[str, Any]] = history.get("rows", [])
        # Of this epoch's flushed steps; losses by column.
        self.losses: dict[str, list[float]] = history.get("losses", {})
        self.norms: list[float] = history.get("norms", [])
        self.remedy = remedy
        self._columns: list[str] = []
        self._unread: list[tuple[int, float, Tensor]] = []  # step, learning rate, and numbers
        self._arriving: tuple[list[tuple[int, float, Tensor]], Tensor, torch.cuda.Event | None] | None = None

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores."""
        return {"rows": self.rows, "losses": self.losses, "norms": self.norms}

    def add(self, step: int, lr: float, losses: dict[str, Tensor], norm: Tensor) -> None:
        """Record a step without waiting for the device; `losses` are scalars by column, first `loss`."""
        self._columns = list(losses)
        numbers = torch.stack([x.detach().float() for x in (*losses.values(), norm)])
        self._unread.append((step, lr, numbers))

    def flush(self, *, wait: bool = True) -> None:
        """Read the recorded steps of all ranks: mean losses and the largest norm.

        Without `wait`, they are read by the next call, so that a GPU need not finish its work.
        FloatingPointError names the first step whose loss or gradient is not finite.
        """
        self._read()
        if self._unread:
            table = gather(torch.stack([numbers for *_, numbers in self._unread])[None])
            self._arriving = (self._unread, *to_host(table))  # (W, steps, columns + 1)
            self._unread = []
        if wait:
            self._read()

    def _read(self) -> None:
        if self._arriving is None:
            return
        steps, table, arrived = self._arriving
        self._arriving = None
        if arrived:
            arrived.synchronize()
        means, norms = table[..., :-1].mean(0).tolist(), table[..., -1].amax(0).tolist()
        for (step, lr, _), losses, norm in zip(steps, means, norms, strict=True):
            for name, value in (("loss", losses[0]), ("norm of the gradient", norm)):
                if not math.isfinite(value):
                    raise FloatingPointError(
                        f"the {name} is {value:.4g} at step {self.plan.first_step + step} "
                        f"(loss {losses[0]:.4g}, learning rate {lr:.3g}); "
                        f"the weights of the last checkpoint are kept. {self.remedy}"
                    )
            for column, loss in zip(self._columns, losses, strict=True):
                self.losses.setdefault(column, []).append(loss)
            self.norms.append(norm)

    def last_loss(self) -> float:
        """The newest flushed loss of this epoch, of several classifiers the smallest, or NaN."""
        return min((losses[-1] for losses in self.losses.values()), default=math.nan)

    def end_epoch(self, step: int, lr: float, rates: dict[str, float]) -> dict[str, Any]:
        """Add a row for the epoch, with means over its steps, and return it."""
        means = {column: sum(losses) / len(losses) for column, losses in self.losses.items()}
        means["gradient_norm"] = sum(self.norms) / len(self.norms)
        self.losses, self.norms = {}, []
        epoch = self.plan.first_epoch + len(self.rows) + 1
        self.rows.append({"epoch": epoch, "step": self.plan.first_step + step, **means, "lr": lr, **rates})
        return self.rows[-1]
