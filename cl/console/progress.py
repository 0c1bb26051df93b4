"""Live progress: a bar with time left, images a second and the share of time spent waiting for data.

On a terminal the bar is redrawn; in a log file there is one plain line an epoch.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

T = TypeVar("T")
QUIET, RARELY = 5.0, 30.0  # seconds between plain lines, of training and of mere counting


class Usage:
    """What a process has used: seconds, `images` trained on, and what else `counters` tells, as joules.

    An image counts once a step whatever the number of its views, and cached features as the images that they are of.

    earlier: what the trainings that went on from a checkpoint had used when it was written.
    """

    def __init__(self, counters: Callable[[], dict[str, float]] = dict) -> None:
        self.counters, self.images = counters, 0
        self.earlier: list[dict[str, float]] = []

    def now(self) -> dict[str, float]:
        """Counters that grow from wherever they began."""
        return {"seconds": time.monotonic(), "images": self.images, **self.counters()}

    def since(self, then: dict[str, float], earlier: Sequence[dict[str, float]]) -> dict[str, float]:
        """What was used since `now` returned `then`, and `earlier`; what was not counted all the time is left out."""
        now = self.now()
        known = [name for name in now if all(name in part for part in (then, *earlier))]
        return {name: now[name] - then[name] + sum(part[name] for part in earlier) for name in known}


class Progress:
    """Where progress is shown, under a title.

    board: what has `add_scalar(name, value, step)`, as TensorBoard's SummaryWriter, and gets every number of every epoch.
    """

    def __init__(
        self, title: str, console: Console | None = None, board: Any = None, usage: Usage | None = None
    ) -> None:
        self.title, self.console, self.board = title, console or Console(stderr=True), board
        self.usage = usage or Usage()

    @contextmanager
    def task(self, steps: int, start: int, steps_per_epoch: int) -> Iterator["Meter"]:
        """Show the progress of a run of `steps` that begins at step `start`."""
        if start:
            self.say(f"continuing after step {start} of {steps}")
        if not self.console.is_terminal:
            yield Meter(self, None, steps, start, steps_per_epoch)
            return
        columns = (
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Bar(*columns, console=self.console) as bar:
            yield Meter(self, bar, steps, start, steps_per_epoch)

    @contextmanager
    def count(self, total: int, unit: str) -> Iterator[Any]:
        """Show the progress of `total` units; yields a function that takes how many were done, `kept=True` if long ago."""
        if not self.console.is_terminal:
            self.say(f"{total} {unit}")
            yield _Lines(self, total, unit).add
            return
        with Bar(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
        ) as bar:
            task = bar.add_task(f"{self.title} ({unit})", total=total)

            def add(done: int, kept: bool = False) -> None:
                bar.advance(task, done)
                if kept:
                    bar.reset(
                        task, completed=int(bar.tasks[0].completed)
                    )  # the time left is that of new work

            yield add

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(f"{self.title}: {text}", highlight=False, markup=False, soft_wrap=True)


class _Lines:
    """How far a count is, and how long it will take, in a plain line now and then."""

    def __init__(self, progress: Progress, total: int, unit: str) -> None:
        self.progress, self.total, self.unit, self.done, self.kept = progress, total, unit, 0, 0
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
    """Counts steps, images and waiting time since the last epoch."""

    def __init__(
        self, progress: Progress, bar: Bar | None, steps: int, start: int, steps_per_epoch: int
    ) -> None:
        self.progress, self.bar, self.steps, self.steps_per_epoch = progress, bar, steps, steps_per_epoch
        self.start = self.done = start
        self.task = bar.add_task(progress.title, total=steps, completed=start, note="") if bar else None
        self._began = self._said = time.monotonic()
        self._then, self._earlier = progress.usage.now(), list[dict[str, float]]()
        self._reset()

    def _reset(self) -> None:
        self.since, self.images, self.waited = time.monotonic(), 0, 0.0

    def waiting(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches, with the time spent waiting for them on record."""
        iterator = iter(batches)
        while True:
            before = time.monotonic()
            batch = next(iterator, None)
            self.waited += time.monotonic() - before
            if batch is None:
                return
            yield batch

    def step(self, images: int, loss: float, lr: float) -> None:
        """A step of so many images is done."""
        self.images += images
        self.progress.usage.images += images
        self.done += 1
        if self.bar and self.task is not None:
            rates = self.rates()
            note = f"epoch {(self.done - 1) // self.steps_per_epoch + 1}  loss {loss:.3f}  lr {lr:.3g}  "
            note += f"{rates['images_per_second']:.0f} images/s  waiting {rates['waiting_percent']:.0f} %"
            self.bar.update(self.task, completed=self.done, note=note)

    def going_on(self, used: dict[str, float]) -> None:
        """The run has `used` so much before this session."""
        self._earlier = [used]
        self.progress.usage.earlier.append(used)

    def used(self) -> dict[str, float]:
        """What the run has used until now, in this session and those before it; see `Usage`."""
        return self.progress.usage.since(self._then, self._earlier)

    def rates(self) -> dict[str, float]:
        """Images a second and the percentage of time spent waiting for data, since the last epoch."""
        seconds = max(time.monotonic() - self.since, 1e-9)
        return {"images_per_second": self.images / seconds, "waiting_percent": 100 * self.waited / seconds}

    def watching(self, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What `measure` returns, and the time it took as a percentage of the time since the last epoch, watching_percent."""
        before = time.monotonic()
        measured = measure()
        return {
            **measured,
            "watching_percent": 100 * (time.monotonic() - before) / max(before - self.since, 1e-9),
        }

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch is done: a plain line where there is no bar, not more often than every few seconds."""
        if self.progress.board:
            for name, value in row.items():
                self.progress.board.add_scalar(f"{self.progress.title}/{name}", value, row["step"])
            self.progress.board.flush()
        if not self.bar and (time.monotonic() - self._said >= QUIET or self.done == self.steps):
            self._said = time.monotonic()
            left = (
                (time.monotonic() - self._began) / max(self.done - self.start, 1) * (self.steps - self.done)
            )
            extra = "".join(
                f", {name} {value:.1f}" for name, value in row.items() if name.startswith(("knn", "top"))
            )
            self.progress.say(
                f"epoch {row['epoch']}, step {row['step']} of {self.steps}, loss {row['loss']:.4f}{extra}, "
                f"{row['images_per_second']:.0f} images/s, waiting {row['waiting_percent']:.0f} %, {left:.0f} s left"
            )
        self._reset()
