"""Live progress: a bar with the time left, and a line for each epoch with its loss, accuracy and speed.

On a terminal of 80 columns, the bar stays below these lines. A log file gets a plain line for an epoch, at
most one every few seconds, and about every half minute within an epoch.
"""

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column

from cl.console.wording import counted

if TYPE_CHECKING:
    from cl.console.loggers import Loggers

T = TypeVar("T")
Count = Callable[[int, str], AbstractContextManager[Callable[..., None]]]  # such as `Progress.count`
QUIET = 5.0  # seconds between plain lines of a training's epochs
RARELY = 30.0  # seconds between plain lines of a count, and within an epoch
WIDTH = 12  # columns of the bar itself
SPEED = 600.0  # seconds whose speed gives the time left on a terminal
# What the line of an epoch says, by column of its row.
SCORES = {
    "loss": "loss {:.4f}",
    "knn_top1": "kNN {:.1f} %",
    "top1": "top-1 {:.1f} %",
    "effective_rank": "rank {:.1f}",
    "images_per_second": "{:.0f} images/s",
}


class Usage:
    """What a process has used: seconds, and images trained on.

    An image counts once per step, however many views it has. Cached features count as their images.

    earlier: for each training resumed from a checkpoint, what it had used when the checkpoint was written.
    """

    def __init__(self) -> None:
        self.images = 0
        self.earlier: list[dict[str, float]] = []

    def now(self) -> dict[str, float]:
        """The current counts; only differences between them are meaningful."""
        return {"seconds": time.monotonic(), "images": self.images}

    def since(self, then: dict[str, float], earlier: Sequence[dict[str, float]]) -> dict[str, float]:
        """Usage since `now` returned `then`, plus `earlier`."""
        return {
            name: count - then[name] + sum(part[name] for part in earlier)
            for name, count in self.now().items()
        }


class Progress:
    """Where progress is shown, under a title.

    loggers: get every epoch's row.
    """

    def __init__(
        self,
        title: str,
        console: Console | None = None,
        loggers: "Loggers | None" = None,
        usage: Usage | None = None,
    ) -> None:
        self.title, self.console, self.loggers = title, console or Console(stderr=True), loggers
        self.usage = usage or Usage()

    @contextmanager
    def task(
        self,
        steps: int,
        start: int,
        steps_per_epoch: int,
        first_epoch: int = 0,
        history: dict[str, Any] | None = None,
    ) -> Iterator["Meter"]:
        """Show the progress of a training of `steps` steps that begins at step `start`.

        Args:
            history: of the run's earlier sessions: what they have `used`, and their `rows`.
        """
        if start:
            self.say(f"continuing after step {start} of {steps}")
        log = self.loggers.begin(self.title, self.say) if self.loggers else None  # may ask for a password
        with _bar(self.console) if self.console.is_terminal else nullcontext() as bar:
            meter = Meter(self, bar, steps, start, steps_per_epoch, first_epoch, log or (lambda row: None))
            meter.going_on(history or {})
            yield meter

    @contextmanager
    def count(self, total: int, unit: str) -> Iterator[Any]:
        """Show the progress of `total` units, a plural.

        Yields:
            `add(done, kept=False)`, for `done` more units; `kept=True` for work done by an earlier run.
        """
        if self.console.is_terminal:
            with _bar(self.console) as bar:
                bar.add_task(f"{self.title} ({unit})", total=total, note="")
                yield functools.partial(_advance, bar)
        else:
            self.say(counted(total, unit))
            yield _PlainCount(self, total, unit).add

    def say(self, text: str) -> None:
        """Print one line."""
        self.console.print(f"{self.title}: {text}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def silent(total: int, unit: str) -> Iterator[Callable[..., None]]:
    """Take the place of `Progress.count`, and show nothing."""
    yield lambda done, kept=False: None


def _bar(console: Console) -> Bar:
    """A bar whose note gets the space that is left, so that a narrow terminal cuts only the note."""
    note = TextColumn("{task.fields[note]}", markup=False, table_column=Column(ratio=1, no_wrap=True))
    columns = ("{task.description}", BarColumn(WIDTH), MofNCompleteColumn(), TimeRemainingColumn(), note)
    return Bar(*columns, console=console, expand=True, speed_estimate_period=SPEED)


def _advance(bar: Bar, done: int, kept: bool = False) -> None:
    (task,) = bar.tasks
    bar.advance(task.id, done)
    if kept:
        bar.reset(task.id, completed=int(task.completed))  # estimate the time left from new work only


def _left(seconds: float) -> str:
    """The time left."""
    return f"{seconds:.0f} s left" if seconds < 60 else f"{timedelta(seconds=round(seconds))} left"


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
            self.progress.say(f"{self.done} of {counted(self.total, self.unit)}, {_left(left)}")


class Meter:
    """Counts steps, images and the time spent waiting, per epoch."""

    def __init__(
        self,
        progress: Progress,
        bar: Bar | None,
        steps: int,
        start: int,
        steps_per_epoch: int,
        first_epoch: int,
        log: Callable[[dict[str, Any]], None],
    ) -> None:
        self.progress, self.bar, self.steps, self.steps_per_epoch = progress, bar, steps, steps_per_epoch
        self.first_epoch, self._log = first_epoch, log
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
        """A step on `images` images is done; `loss` is NaN while it is not known."""
        self.images += images
        self.progress.usage.images += images
        self.done += 1
        epoch = self.first_epoch + (self.done - 1) // self.steps_per_epoch + 1
        row = {"loss": loss, **self.rates()}
        if self.bar and self.task is not None:
            note = f"epoch {epoch}, {_scores(row)}, waiting {row['waiting_percent']:.0f} %, lr {lr:.3g}"
            self.bar.update(self.task, completed=self.done, note=note)
        elif time.monotonic() - self._said >= RARELY:
            self._say_plainly({"epoch": epoch, **row})

    def going_on(self, history: dict[str, Any]) -> None:
        """Count what earlier sessions of this run have used, and log their rows; {} in the first session."""
        if used := history.get("used"):
            self._earlier = [used]
            self.progress.usage.earlier.append(used)
        for row in history.get("rows", []):
            self._log(row)

    def used(self) -> dict[str, float]:
        """What all sessions of this run have used so far; see `Usage`."""
        return self.progress.usage.since(self._then, self._earlier)

    def rates(self) -> dict[str, float]:
        """Images per second and the percentage of time spent waiting for data, in this epoch so far."""
        seconds = max(time.monotonic() - self.since, 1e-9)
        return {"images_per_second": self.images / seconds, "waiting_percent": 100 * self.waited / seconds}

    def monitoring(self, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """The result of `measure`, and the time it took as a percentage of the epoch before it."""
        before = time.monotonic()
        measured = measure()
        took = time.monotonic() - before
        return {**measured, "monitor_percent": 100 * took / max(before - self.since, 1e-9)}

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch is done: show its row, in a log file at most every few seconds, and log it."""
        self._log(row)
        if self.bar:
            self.progress.say(f"epoch {row['epoch']}, {_scores(row)}")
        elif self.done == self.steps or time.monotonic() - self._said >= QUIET:
            self._say_plainly(row)
        self._reset()

    def _say_plainly(self, row: dict[str, Any]) -> None:
        """A line for a log file."""
        self._said = time.monotonic()
        seconds_per_step = (self._said - self._began) / max(self.done - self.start, 1)
        self.progress.say(
            f"epoch {row['epoch']}, step {self.done} of {self.steps}, {_scores(row)}, "
            f"waiting {row['waiting_percent']:.0f} %, {_left(seconds_per_step * (self.steps - self.done))}"
        )


def _scores(row: dict[str, Any]) -> str:
    known = {name: text for name, text in SCORES.items() if not math.isnan(row.get(name, math.nan))}
    return ", ".join(text.format(row[name]) for name, text in known.items())
