"""Progress in a log file and on a terminal."""

import io
import math
import re
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from cl.console import progress
from cl.console.progress import Progress
from cl.console.wording import duration


@pytest.mark.parametrize("kept", [0, 80])
def test_progress_in_a_log_file_shows_the_time_left(kept, monkeypatch) -> None:
    """Kept work does not shorten it."""
    file = io.StringIO()
    monkeypatch.setattr(progress, "RARELY", 0.0)
    with Progress("prepare", Console(file=file)).count(kept + 30, "images") as report:
        report(kept, kept=True)
        time.sleep(0.6)
        report(10)
        report(20)  # nothing is left, so that no line is needed
    left = f"prepare: {kept + 10} of {kept + 30} images, 1 s left"
    assert file.getvalue().splitlines() == [f"prepare: {kept + 30} images", left]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59, "59 s"), (59.9, "1 min"), (3599, "1 h 0 min"), (7500, "2 h 5 min"), (86400, "1 day 0 h")]
    + [(3 * 86400 + 4 * 3600 + 60, "3 days 4 h")],
)
def test_times_are_given_in_two_units(seconds, text) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("step", [1.0, 100.0])
def test_a_log_file_gives_the_time_left(monkeypatch, step) -> None:
    """The first step, which takes longer, does not count."""
    now, file = [0.0], io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown = Progress("pretrain", Console(file=file, width=200))
    with shown.task(116, 0, 50) as meter:
        for number in range(40):
            now[0] += step if number else 1000
            meter.step(32, 5.5, 0.1)
    left = [line.rpartition(", ")[2] for line in file.getvalue().splitlines() if line.endswith("left")]
    assert left
    assert {*left} <= {f"{duration((116 - done) * step)} left" for done in range(2, 41)}


def test_the_share_of_time_spent_waiting_is_a_percentage(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def batches() -> Iterator[int]:
        for step in range(2):
            now[0] += 1
            yield step

    with Progress("pretrain", Console(file=io.StringIO())).task(2, 0, 2) as meter:
        for _ in meter.waiting(batches()):
            now[0] += 3
            meter.step(32, 5.5, 0.1)
        assert meter.rates() == {"images_per_second": 8.0, "waiting_percent": 25.0}


@pytest.mark.parametrize(("rarely", "within"), [(0.0, [1, 2, 3, 4]), (30.0, [])])
def test_a_log_file_gets_lines_within_an_epoch(monkeypatch, rarely, within) -> None:
    """The loss is left out while it is not known."""
    file = io.StringIO()
    monkeypatch.setattr(progress, "RARELY", rarely)
    with Progress("pretrain", Console(file=file)).task(8, 0, 4) as meter:
        for step in (1, 2, 3, 4):
            meter.step(32, 5.5 if step > 1 else math.nan, 0.1)
    lines = file.getvalue().splitlines()
    assert [4 * float(line.split("epoch ")[1].split("/")[0]) for line in lines] == within
    for line in lines:
        loss = "" if "0.25/2" in line else "loss 5.500, "
        assert re.fullmatch(rf"pretrain: epoch [\d.]+/2, {loss}\d+[.]\d/s", line)
        assert len(line) <= 80


def test_the_time_left_is_always_visible_on_a_terminal_of_80_columns() -> None:
    """Below the epochs, however long the numbers and the unit are; a note is cut."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    with Progress("pretrain", console).task(300_000, 0, 100_000) as meter:
        meter.done = 99_997
        for _ in range(3):
            time.sleep(0.15)
            meter.step(4096, 12.3456, 0.0123)
        meter.epoch({"epoch": 1, "loss": 12.3456, **meter.rates(), "knn_top1": 67.89, "effective_rank": 1.0})
    with Progress("embed", console).count(100_000_000, "images of this process") as report:
        for _ in range(3):
            time.sleep(0.15)
            report(25_000_000)
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", file.getvalue()).replace("\r", "\n").splitlines()
    assert max(map(len, shown)) <= 80
    titles = ("pretrain (steps) ━", "embed (images of this process) ━")
    assert all(line.startswith((*titles, "pretrain: ")) for line in shown if line), (
        "no note wraps onto a second line"
    )
    for title in titles:
        bars = [line for line in shown if line.startswith(title)]
        assert all(re.search(r" (-:--:--|\d+:\d\d:\d\d)( |$)", bar) for bar in bars)
        assert any(re.search(r" \d+:\d\d:\d\d ", bar) for bar in bars), "it is never known"
    assert any(re.search(r"\d:\d\d:\d\d epoch 1, loss 12.3", line) for line in shown)
    epoch = r"pretrain: epoch 1, loss 12.346, kNN 67.9 %, \d+[.]\d/s"
    assert any(re.fullmatch(epoch, line) for line in shown)
