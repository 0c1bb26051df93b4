"""Live progress: a bar with the time left, and a line for each epoch with its loss, accuracy and speed.

On a terminal, the bar stays below these lines. A log file gets one plain line per epoch, at most every few
seconds, and about every half minute within an epoch.
"""

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column

from cl.console.loggers import Loggers
from cl.console.wording import counted, duration, printable

T = TypeVar("T")
Count = Callable[[int, str], AbstractContextManager[Callable[..., None]]]  # such as `Progress.count`
QUIET = 5.0  # seconds between plain lines of a training's epochs
RARELY = 30.0  # seconds between plain lines of a count, and within an epoch
WAITING = 10  # percent of the time that is worth a word
WIDTH = 12  # columns of the bar itself
SPEED = 600.0  # seconds over which the speed is averaged for the time left on a terminal
# Columns shown in an epoch's line, and their format.
SCORES = {
    "loss": "loss {:.3f}",
    "knn_top1": "kNN {:.1f} %",
    "top1": "top-1 {:.1f} %",
    "images_per_second": "{:.1f}/s",
}


class Usage:
    """What a process has used: seconds, and images trained on.

    An image counts once per step, however many views it has. Cached features count as images. When a training
    resumes, the usage recorded in its checkpoint is added.
    """

    def __init__(self) -> None:
        self.images = self.earlier_seconds = 0.0

    def now(self) -> dict[str, float]:
        """The current counts; only differences between them are meaningful."""
        return {"seconds": time.monotonic() + self.earlier_seconds, "images": self.images}

    def since(self, then: dict[str, float]) -> dict[str, float]:
        """Usage since `now` returned `then`."""
        return {name: count - then[name] for name, count in self.now().items()}


USAGE = Usage()  # of this process, shared by all trainings of a stage


class Progress:
    """Shows progress under a title; the loggers get the row of each epoch."""

    def __init__(
        self,
        title: str,
        console: Console | None = None,
        loggers: Loggers | None = None,
        usage: Usage = USAGE,
    ) -> None:
        self.title, self.console, self.loggers = title, console or Console(stderr=True), loggers
        self.usage = usage

    @contextmanager
    def task(
        self,
        steps: int,
        start: int,
        steps_per_epoch: int,
        first_epoch: int = 0,
        history: dict[str, Any] | None = None,
    ) -> Iterator["Meter"]:
        """Show a training from step `start` on; `history`: what earlier sessions `used`, and their `rows`."""
        if start:
            self.say(f"continuing after step {start} of {steps}")
        log = self.loggers.begin(self.title, self.say) if self.loggers else None  # may ask for a password
        with _bar(self.console) if self.console.is_terminal else nullcontext() as bar:
            meter = Meter(self, bar, steps, start, steps_per_epoch, first_epoch, log or (lambda row: None))
            if history and (used := history.get("used")):
                self.usage.images += used["images"]
                self.usage.earlier_seconds += used["seconds"]
            for row in (history or {}).get("rows", []):
                meter.log(row)
            yield meter

    @contextmanager
    def count(self, total: int, unit: str) -> Iterator[Any]:
        """Show the progress of `total` units; yields `add(done, kept=False)`, `kept` for earlier work."""
        if self.console.is_terminal:
            with _bar(self.console) as bar:
                bar.add_task(f"{self.title} ({unit})", total=total, note="")
                yield functools.partial(_advance, bar)
        else:
            self.say(counted(total, unit))
            yield self._plain_count(total, unit)

    def _plain_count(self, total: int, unit: str) -> Callable[..., None]:
        """Count units, and sometimes print the progress and the time left, estimated from new work only."""
        done = kept_before = 0
        began = said = time.monotonic()

        def add(more: int, kept: bool = False) -> None:
            nonlocal done, kept_before, said
            done += more
            kept_before += more * kept
            now = time.monotonic()
            if now - said >= RARELY and kept_before < done < total:
                said = now
                left = (now - began) / (done - kept_before) * (total - done)
                self.say(f"{done} of {counted(total, unit)}, {duration(left)} left")

        return add

    def say(self, *texts: str) -> None:
        """Print each as one line."""
        for text in texts:
            line = printable(f"{self.title}: {text}")
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def silent(total: int, unit: str) -> Iterator[Callable[..., None]]:
    """Replaces `Progress.count` and shows nothing."""
    yield lambda done, kept=False: None


def _bar(console: Console) -> Bar:
    """A bar with a note at the end, so that a narrow terminal cuts only the note."""
    note = TextColumn("{task.fields[note]}", markup=False, table_column=Column(ratio=1, no_wrap=True))
    columns = ("{task.description}", BarColumn(WIDTH), MofNCompleteColumn(), TimeRemainingColumn(), note)
    return Bar(*columns, console=console, expand=True, speed_estimate_period=SPEED)


def _advance(bar: Bar, done: int, kept: bool = False) -> None:
    (task,) = bar.tasks
    bar.advance(task.id, done)
    if kept:
        bar.reset(task.id, completed=int(task.completed))  # estimate the time left from new work only


@dataclass
class Meter:
    """Counts steps, images and the time spent waiting, per epoch."""

    progress: Progress
    bar: Bar | None
    steps: int
    start: int
    steps_per_epoch: int
    first_epoch: int
    log: Callable[[dict[str, Any]], None]

    def __post_init__(self) -> None:
        self.done = self.start
        if self.bar:
            title = f"{self.progress.title} (steps)"
            self.task = self.bar.add_task(title, total=self.steps, completed=self.start, note="")
        self._said = time.monotonic()
        self._second_step: float | None = None  # its start: the time left leaves out the first, slower step
        self._then = self.progress.usage.now()
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
        """Record a step on `images` images; `loss` is NaN while it is unknown."""
        self.images += images
        self.progress.usage.images += images
        self.done += 1
        epoch = self.first_epoch + (self.done - 1) // self.steps_per_epoch + 1
        row = {"loss": loss, **self.rates()}
        if self.bar:
            note = f"epoch {epoch}, {_scores(row)}, lr {lr:.3g}"
            self.bar.update(self.task, completed=self.done, note=note)
        elif time.monotonic() - self._said >= RARELY:
            self._say_plainly(row)
        if self._second_step is None:
            self._second_step = time.monotonic()

    def _seconds_left(self, now: float) -> float:
        """By the time of all steps but the first, with the monitoring between them; 0 if unknown or done."""
        if self._second_step is None or self.done == self.start + 1:
            return 0.0
        return (now - self._second_step) / (self.done - self.start - 1) * (self.steps - self.done)

    def used(self) -> dict[str, float]:
        """Usage of all sessions of this run so far; see `Usage`."""
        return self.progress.usage.since(self._then)

    def rates(self) -> dict[str, float]:
        """This epoch's images per second so far, and its percentage of time spent waiting for data."""
        seconds = max(time.monotonic() - self.since, 1e-9)
        return {"images_per_second": self.images / seconds, "waiting_percent": 100 * self.waited / seconds}

    def epoch(self, row: dict[str, Any]) -> None:
        """Log the row of a finished epoch and show it, in a log file at most every few seconds."""
        self.log(row)
        if self.bar:
            self.progress.say(f"epoch {row['epoch']}, {_scores(row)}")
        elif self.done == self.steps or time.monotonic() - self._said >= QUIET:
            self._say_plainly(row)
        self._reset()

    def _say_plainly(self, row: dict[str, Any]) -> None:
        self._said = time.monotonic()
        digits = 2 if self.steps < 10 * self.steps_per_epoch else 1
        epochs = (self.first_epoch + count / self.steps_per_epoch for count in (self.done, self.steps))
        place = "/".join(f"{epoch:.{digits}f}".rstrip("0").rstrip(".") for epoch in epochs)
        seconds = self._seconds_left(self._said)
        left = f", {duration(seconds)} left" if seconds >= 0.5 else ""
        self.progress.say(f"epoch {place}, {_scores(row)}{left}")


def _scores(row: dict[str, Any]) -> str:
    known = {name: text for name, text in SCORES.items() if not math.isnan(row.get(name, math.nan))}
    if "top1" in known:
        known.pop("loss", None)  # in a linear evaluation, a mean over several classifiers
    scores = [text.format(row[name]) for name, text in known.items()]
    if (waiting := row["waiting_percent"]) >= WAITING:
        scores.append(f"waiting {waiting:.0f} % for data")
    return ", ".join(scores)
