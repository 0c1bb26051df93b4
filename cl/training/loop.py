"""The training loop, for pretraining, baselines and the evaluations that train."""

import math
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from cl.console.progress import Meter, Progress
from cl.console.stop import StoppedError, signals
from cl.data.order import Plan
from cl.runtime.distributed import any_rank, gather, largest, rank, ranks
from cl.runtime.machine import Machine
from cl.training import optim
from cl.training.checkpoints import Checkpoints
from cl.training.tasks import Task

ASK_SECONDS = 5.0  # between moments at which processes ask each other whether to stop or to save


class Data(Protocol):
    """The training data: one batch per step, and how it becomes the input of a task."""

    plan: Plan

    def batches(self, start: int, stop: int, workers: int) -> Iterator[Any]:
        """The batches of steps start to stop - 1."""

    def inputs(self, here: Machine) -> Callable[[Any], Any]:
        """What turns a batch into the task's input on the device; for an encoder a `Batch`."""


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
    `checkpoints`. What `each_epoch(epoch)` measures in eval mode joins the epoch's row.

    Raises:
        FloatingPointError: a loss or a gradient is not finite; the last checkpoint is kept.
        StoppedError: a signal asked for it.
        ValueError: a checkpoint does not fit the task, or the processes found different checkpoints.
    """
    plan, steps_per_epoch = data.plan, data.plan.steps_per_epoch
    steps = max(1, round(config.epochs * steps_per_epoch))
    start, history = _restore(checkpoints, task, optimizer, progress) if checkpoints else (0, {})
    ledger, requests = MetricBuffer(history, task.remedy, plan), StopSync(start, task.machine, checkpoints)
    inputs, model = data.inputs(task.machine), replicated(task.train())
    batches = data.batches(start, steps, task.machine.workers)
    with progress.task(steps, start, steps_per_epoch, plan.first_epoch, history) as meter, signals() as stop:
        for step, batch in enumerate(meter.waiting(batches), start):
            done = step + 1
            lr = optim.follow_schedules(optimizer, config, step, steps, steps_per_epoch)
            _begin(task, plan.first_step + step, step / steps, steps_per_epoch)
            loss, norm = _optimize(model, inputs(batch), optimizer, config)
            task.after_step(done / steps)
            ledger.add(step, lr, task.reported(loss), norm, task.largest_logit)
            stopping, saving = requests.heard(done, stop)
            epoch_ends = done % steps_per_epoch == 0 or done == steps
            if epoch_ends or saving or stopping or done % task.machine.read_every == 0:
                ledger.flush()
            meter.step(plan.batch_size, ledger.last_loss(), lr)
            if epoch_ends:
                _end_epoch(ledger.end_epoch(done, lr, meter.rates()), task, meter, each_epoch)
            if checkpoints and epoch_ends and rank() == 0:
                checkpoints.publish(ledger.rows)
            if checkpoints and (saving or stopping or done == steps) and rank() == 0:
                checkpoints.save(done, task, optimizer, {**ledger.state(), "used": meter.used()})
            if stopping and done < steps:
                _stop(stop[0] if stop else signal.SIGTERM, done, saved=checkpoints is not None)
    task.eval()
    return ledger.rows


def _begin(task: Task, step: int, progress: float, steps_per_epoch: int) -> None:
    task.begin_step(step, progress)  # first: random numbers of an epoch come from its first step
    if step % steps_per_epoch == 0:
        task.begin_epoch(step // steps_per_epoch)


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


def _end_epoch(
    row: dict[str, Any],
    task: Task,
    meter: Meter,
    each_epoch: Callable[[int], dict[str, float]] | None,
) -> None:
    """Measure in eval mode, add the results to the row and show it."""
    if each_epoch:
        task.eval()
        row |= meter.monitoring(partial(each_epoch, row["epoch"]))
        task.train()
    meter.epoch(row)


def _stop(number: int, done: int, *, saved: bool) -> NoReturn:
    any_rank()  # the other processes wait here until rank 0 has saved
    raise StoppedError(number, done, saved=saved)


def _restore(
    checkpoints: Checkpoints, task: Task, optimizer: Optimizer, progress: Progress
) -> tuple[int, dict[str, Any]]:
    """Restore on rank 0 first, since it removes damaged files."""
    start, history = 0, dict[str, Any]()
    for rank_0_reads in (True, False):
        if (rank() == 0) == rank_0_reads:
            start, history = checkpoints.restore(task, optimizer, progress.say)
        any_rank()  # a barrier
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
    """Whether the run is asked to stop or to save, on which all processes must agree.

    They compare notes every `ASK_SECONDS`, and at least every `machine.read_every` steps.
    """

    def __init__(self, start: int, machine: Machine, checkpoints: Checkpoints | None = None) -> None:
        self.most, self.checkpoints = machine.read_every, checkpoints
        self.asked = self.next = start
        self.since = time.monotonic()

    def heard(self, done: int, signals: list[int]) -> list[bool]:
        """After this step: whether any process received a signal, and whether the first must save."""
        stop = bool(signals)
        due = rank() == 0 and self.checkpoints is not None and self.checkpoints.due()
        if ranks() == 1:
            return [stop, due]
        if done < self.next:
            return [False, False]
        now = time.monotonic()
        seconds = (now - self.since) / max(1, done - self.asked)  # of a step
        stopping, saving, slowest = largest(stop, due, seconds)
        self.since, self.asked = now, done
        self.next = done + max(1, min(self.most, int(ASK_SECONDS / max(slowest, 1e-9))))
        return [bool(stopping), bool(saving)]


def replicated(task: Task) -> nn.Module:
    """The task, with its gradients averaged over all ranks."""
    if ranks() == 1:
        return task
    # `find_unused_parameters` keeps the order in which gradients are packed, also after the first step. Sums
    # over three ranks or more depend on that order, and a resumed run would differ in the last digit.
    return DistributedDataParallel(
        task, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=True
    )


class MetricBuffer:
    """Losses, gradient norm, largest logit of every step, on the device until `flush`; and the epochs' rows.

    Args:
        history: what `state` returned in the run to resume, or {}.
        remedy: advice to the user when a loss is not finite.
        plan: gives the first epoch and step.
    """

    def __init__(self, history: dict[str, Any], remedy: str, plan: Plan) -> None:
        self.plan = plan
        self.rows: list[dict[str, Any]] = history.get("rows", [])
        # By column, of the epoch's steps that were flushed.
        self.losses: dict[str, list[float]] = history.get("losses", {})
        self.norms: list[float] = history.get("norms", [])
        self.remedy = remedy
        self._steps: list[tuple[int, float]] = []
        self._columns: list[str] = []
        self._unread: list[Tensor] = []

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"rows": self.rows, "losses": self.losses, "norms": self.norms}

    def add(
        self, step: int, lr: float, losses: dict[str, Tensor], norm: Tensor, largest_logit: Tensor
    ) -> None:
        """Note a step without waiting for the device; `losses` are scalars by column, `loss` the first."""
        self._steps.append((step, lr))
        self._columns = list(losses)
        values = (*losses.values(), norm, largest_logit)
        self._unread.append(torch.stack([x.detach().float() for x in values]))

    def flush(self) -> None:
        """Read the steps noted on all ranks: mean loss, largest norm and largest logit.

        Raises:
            FloatingPointError: naming the first step whose loss or gradient is not finite.
        """
        if not self._unread:
            return
        table = gather(torch.stack(self._unread)[None])  # (W, steps, columns + 2)
        means, largest = table[..., :-2].mean(0).tolist(), table[..., -2:].amax(0).tolist()
        for (step, lr), losses, (norm, logit) in zip(self._steps, means, largest, strict=True):
            if problem := _not_finite(losses[0], norm):
                raise FloatingPointError(
                    f"the {problem} at step {self.plan.first_step + step} "
                    f"(loss {losses[0]:.4g}, largest logit {logit:.4g}, "
                    f"learning rate {lr:.3g}); the weights of the last checkpoint are kept. {self.remedy}"
                )
            for column, loss in zip(self._columns, losses, strict=True):
                self.losses.setdefault(column, []).append(loss)
            self.norms.append(norm)
        self._steps.clear()
        self._unread.clear()

    def last_loss(self) -> float:
        """The newest loss of this epoch that was flushed, or NaN."""
        return self.losses["loss"][-1] if self.losses else math.nan

    def end_epoch(self, step: int, lr: float, rates: dict[str, float]) -> dict[str, Any]:
        """Add the row of an epoch, with the means over its steps, and return it."""
        means = {column: sum(losses) / len(losses) for column, losses in self.losses.items()}
        means["gradient_norm"] = sum(self.norms) / len(self.norms)
        self.losses, self.norms = {}, []
        epoch = self.plan.first_epoch + len(self.rows) + 1
        self.rows.append({"epoch": epoch, "step": self.plan.first_step + step, **means, "lr": lr, **rates})
        return self.rows[-1]


def _not_finite(loss: float, norm: float) -> str | None:
    if not math.isfinite(loss):
        return f"loss is {loss:.4g}"
    return None if math.isfinite(norm) else f"norm of the gradient is {norm:.4g}"
