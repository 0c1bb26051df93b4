"""Live progress: a bar with time left, images per second and the share of time spent waiting for data.

On a terminal the bar is redrawn; a log file gets one plain line per epoch.
"""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

T = TypeVar("T")
QUIET = 5.0  # seconds between plain lines of a training
RARELY = 30.0  # seconds between plain lines of a count


class Usage:
    """What a process has used: seconds, images trained on, and whatever `counters` reports, such as joules.

    An image counts once per step, however many views it has. Cached features count as their images.

    earlier: for each training resumed from a checkpoint, what it had used when the checkpoint was written.
    """

    def __init__(self, counters: Callable[[], dict[str, float]] = dict) -> None:
        self.counters, self.images = counters, 0
        self.earlier: list[dict[str, float]] = []

    def now(self) -> dict[str, float]:
        """The current counters; only differences between them are meaningful."""
        return {"seconds": time.monotonic(), "images": self.images, **self.counters()}

    def since(self, then: dict[str, float], earlier: Sequence[dict[str, float]]) -> dict[str, float]:
        """Usage since `now` returned `then`, plus `earlier`; counters that any of them lacks are left out."""
        now = self.now()
        known = [name for name in now if all(name in part for part in (then, *earlier))]
        return {name: now[name] - then[name] + sum(part[name] for part in earlier) for name in known}


class Progress:
    """Where progress is shown, under a title.

    board: gets every epoch's row; TensorBoard's SummaryWriter, or an object with `add_scalar` and `flush`.
    """

    def __init__(
        self, title: str, console: Console | None = None, board: Any = None, usage: Usage | None = None
    ) -> None:
        self.title, self.console, self.board = title, console or Console(stderr=True), board
        self.usage = usage or Usage()

    @contextmanager
    def task(self, steps: int, start: int, steps_per_epoch: int, first_epoch: int = 0) -> Iterator["Meter"]:
        """Show the progress of a training of `steps` steps that begins at step `start`."""
        if start:
            self.say(f"continuing after step {start} of {steps}")
        if self.console.is_terminal:
            with _bar(self.console, TextColumn("{task.fields[note]}")) as bar:
                yield Meter(self, bar, steps, start, steps_per_epoch, first_epoch)
        else:
            yield Meter(self, None, steps, start, steps_per_epoch, first_epoch)

    @contextmanager
    def count(self, total: int, unit: str) -> Iterator[Any]:
        """Show the progress of `total` units.

        Yields:
            `add(done, kept=False)`, for `done` more units; `kept=True` for work done by an earlier run.
        """
        if self.console.is_terminal:
            with _bar(self.console) as bar:
                bar.add_task(f"{self.title} ({unit})", total=total)
                yield functools.partial(_advance, bar)
        else:
            self.say(f"{total} {unit}")
            yield _PlainCount(self, total, unit).add

    def say(self, text: str) -> None:
        """Print one line."""
        self.console.print(f"{self.title}: {text}", highlight=False, markup=False, soft_wrap=True)


def _bar(console: Console, *columns: TextColumn) -> Bar:
    common = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bar(*common, *columns, console=console)


def _advance(bar: Bar, done: int, kept: bool = False) -> None:
    (task,) = bar.tasks
    bar.advance(task.id, done)
    if kept:
        bar.reset(task.id, completed=int(task.completed))  # estimate the time left from new work only


class _PlainCount:
    """A count shown as an occasional plain line."""

    def __init__(self, progress: Progress, total: int, unit: str) -> None:
        self.progress, self.total, self.unit = progress, total, unit
        self.done = self.kept = 0
        self._began = self._said = time.monotonic()

    def add(self, done: int, kept: bool = False) -> None:
        self.done += done
        self.kept += done * kept
        now = time.monotonic()
        if now - self._said >= RARELY and self.done > self.kept:
            self._said = now
            left = (now - self._began) / (self.done - self.kept) * (self.total - self.done)
            self.progress.say(f"{self.done} of {self.total} {self.unit}, {left:.0f} s left")


class Meter:
    """Counts steps, images and the time spent waiting, per epoch."""

    def __init__(
        self,
        progress: Progress,
        bar: Bar | None,
        steps: int,
        start: int,
        steps_per_epoch: int,
        first_epoch: int = 0,
    ) -> None:
        self.progress, self.bar, self.steps, self.steps_per_epoch = progress, bar, steps, steps_per_epoch
        self.first_epoch = first_epoch
        self.start = self.done = start
        self.task = bar.add_task(progress.title, total=steps, completed=start, note="") if bar else None
        self._began = self._said = time.monotonic()
        self._then, self._earlier = progress.usage.now(), list[dict[str, float]]()
        self._reset()

    def _reset(self) -> None:
        self.since, self.images, self.waited = time.monotonic(), 0, 0.0

    def waiting(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches, measuring the time spent waiting for them."""
        iterator = iter(batches)
        while True:
            before = time.monotonic()
            batch = next(iterator, None)
            self.waited += time.monotonic() - before
            if batch is None:
                return
            yield batch

    def step(self, images: int, loss: float, lr: float) -> None:
        """A step on `images` images is done."""
        self.images += images
        self.progress.usage.images += images
        self.done += 1
        if self.bar and self.task is not None:
            rates = self.rates()
            epoch = self.first_epoch + (self.done - 1) // self.steps_per_epoch + 1
            note = f"epoch {epoch}  loss {loss:.3f}  lr {lr:.3g}  "
            note += f"{rates['images_per_second']:.0f} images/s  waiting {rates['waiting_percent']:.0f} %"
            self.bar.update(self.task, completed=self.done, note=note)

    def going_on(self, used: dict[str, float] | None) -> None:
        """Earlier sessions of this run have `used` this much; None in the first session."""
        if used is not None:
            self._earlier = [used]
            self.progress.usage.earlier.append(used)

    def used(self) -> dict[str, float]:
        """What all sessions of this run have used so far; see `Usage`."""
        return self.progress.usage.since(self._then, self._earlier)

    def rates(self) -> dict[str, float]:
        """Images per second and the percentage of time spent waiting for data, in this epoch so far."""
        seconds = max(time.monotonic() - self.since, 1e-9)
        return {"images_per_second": self.images / seconds, "waiting_percent": 100 * self.waited / seconds}

    def watching(self, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """The result of `measure`, and the time it took as a percentage of the epoch before it."""
        before = time.monotonic()
        measured = measure()
        took = time.monotonic() - before
        return {**measured, "watching_percent": 100 * took / max(before - self.since, 1e-9)}

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch is done: its row goes to the board and, without a bar, to a line every few seconds."""
        if self.progress.board:
            for name, value in row.items():
                self.progress.board.add_scalar(f"{self.progress.title}/{name}", value, row["step"])
            self.progress.board.flush()
        last = self.done == self.steps
        if not self.bar and (last or time.monotonic() - self._said >= QUIET):
            self._said = time.monotonic()
            self.progress.say(self._line(row))
        self._reset()

    def _line(self, row: dict[str, Any]) -> str:
        seconds_per_step = (time.monotonic() - self._began) / max(self.done - self.start, 1)
        scores = [f", {name} {value:.1f}" for name, value in row.items() if name.startswith(("knn", "top"))]
        return (
            f"epoch {row['epoch']}, step {self.done} of {self.steps}, "
            f"loss {row['loss']:.4f}{''.join(scores)}, "
            f"{row['images_per_second']:.0f} images/s, waiting {row['waiting_percent']:.0f} %, "
            f"{seconds_per_step * (self.steps - self.done):.0f} s left"
        )
