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


def test_progress_in_a_log_file_shows_the_time_left(monkeypatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(progress, "RARELY", 0.0)
    with Progress("prepare", Console(file=file)).count(30, "images") as report:
        time.sleep(0.6)
        report(10)
        report(20)
    assert file.getvalue().splitlines() == [
        "prepare: 30 images",
        "prepare: 10 of 30 images, 1 s left",
        "prepare: 30 of 30 images, 0 s left",
    ]


def test_kept_work_does_not_shorten_the_time_left(monkeypatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(progress, "RARELY", 0.0)
    with Progress("prepare", Console(file=file)).count(100, "images") as report:
        report(80, kept=True)
        time.sleep(0.6)
        report(10)
    assert file.getvalue().splitlines() == ["prepare: 100 images", "prepare: 90 of 100 images, 1 s left"]


def test_progress_in_a_log_file_is_rare() -> None:
    file = io.StringIO()
    with Progress("prepare", Console(file=file)).count(1000, "images") as report:
        for _ in range(1000):
            report(1)
    assert file.getvalue() == "prepare: 1000 images\n"


def test_long_times_are_given_in_hours() -> None:
    assert progress._left(59) == "59 s left"
    assert progress._left(3 * 86400 + 3723.4) == "3 days, 1:02:03 left"


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
    assert [int(line.split("step ")[1].split()[0]) for line in lines] == within
    for line in lines:
        loss = "" if "step 1 " in line else "loss 5.5000, "
        expected = rf"pretrain: epoch 1, step \d of 8, {loss}\d+ images/s, waiting 0 %, 0 s left"
        assert re.fullmatch(expected, line)
