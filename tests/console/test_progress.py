"""Progress in a log file and on a terminal."""

import io
import time

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


def test_progress_on_a_terminal_is_a_bar() -> None:
    file = io.StringIO()
    with Progress("prepare", Console(file=file, force_terminal=True, width=80)).count(30, "images") as report:
        report(10)
        time.sleep(0.2)
        report(20)
    assert "prepare (images)" in file.getvalue()
    assert "30/30" in file.getvalue()
    assert "━" in file.getvalue()
