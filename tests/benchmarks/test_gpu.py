"""The GPU benchmarks: on a GPU every check passes; without one they say so, and run at a tiny size."""

import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks.gpu import check, day, steps, training
from benchmarks.gpu.session import Session, read
from benchmarks.parameters import parameters

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SLOW = {
    "check.ranks",
    "check.resume",
    "check.methods",
    "check.loop",
    "speed.step",
    "speed.profile",
    "speed.cropping",
}
TINY = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in day.PARTS]
CHECKS = [name for name in day.PARTS if name.startswith("check.")]
PAGE = "# Page\n\nBy hand.\n\n## Measured\n\nold\n\n### old\n\n## Next\n\nBy hand, too.\n"


@pytest.mark.parametrize("name", TINY)
def test_every_part_runs_at_a_tiny_size_on_a_cpu(name: str, tmp_path: Path) -> None:
    day.PARTS[name](Session(CPU, tmp_path / "results.jsonl", name))
    rows = read(tmp_path / "results.jsonl")
    assert {row["part"] for row in rows} == {name}
    assert all(row["passed"] is not False for row in rows)


@pytest.mark.slow
def test_options_of_cases_that_need_a_gpu_exist(tmp_path: Path) -> None:
    for choices in check.RESUMED:
        parameters(*check.SMALL_RUN, *choices)
    session = Session(CUDA, tmp_path, "")
    for number, cell in enumerate(training.combinations(session, 1)):
        training.params_of(session, cell, number)
    for case in {(case.overrides, case.setting): case for case in (*steps.CASES, *steps.COMPILED)}.values():
        case.params(session)


class FullSize(Session):
    """A session that runs parts at full size, also on a CPU."""

    tiny = False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["check.methods", "check.recorded", "check.loop"])
def test_checks_do_not_fail_by_their_own_fault(name: str, tmp_path: Path, monkeypatch) -> None:
    """On a CPU, they compare it with itself."""
    monkeypatch.setattr(check, "combinations", partial(training.combinations, each=1))
    day.PARTS[name](FullSize(CPU, tmp_path / "results.jsonl", name))
    rows = read(tmp_path / "results.jsonl")
    assert rows
    assert [row for row in rows if not row["passed"]] == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHECKS)
def test_results_on_a_gpu_are_those_of_the_cpu(name: str) -> None:
    """Methods, losses, batch norm, log-partition, augmentation, the loop, exact resume, and two processes."""
    rows = day.run({name: day.PARTS[name]}, CUDA, 3600)
    assert rows
    assert [row for row in rows if row["passed"] is False] == []


def right(session: Session) -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    session.report("two", True, error=0.5)


def wrong(session: Session) -> None:
    raise RuntimeError("first line\nsecond line")


def crashing(session: Session) -> None:
    os.write(2, b"driver: no\n")
    os._exit(7)


def hanging(session: Session) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    session.report("child", child=child.pid)
    time.sleep(1000)


@pytest.mark.slow
def test_a_part_that_fails_costs_no_other_part(monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    rows = day.run({"check.wrong": wrong, "check.crashing": crashing, "check.right": right}, CPU, 120)
    failed = {row["part"]: row["error"] for row in rows if row["passed"] is False}
    assert failed == {"check.wrong": "RuntimeError: first line", "check.crashing": "driver: no"}
    assert rows[-1] == {"part": "check.right", "what": "two", "passed": True, "error": 0.5}


@pytest.mark.slow
def test_a_part_that_hangs_is_stopped_at_its_limit_with_its_processes(monkeypatch) -> None:
    monkeypatch.setattr(day, "LEAST", 3.0)
    monkeypatch.setitem(day.MINUTES, "check.hanging", 0.01)
    day.run({"check.right": right}, CPU, 60)  # what starts the processes takes seconds to start itself
    rows = day.run({"check.hanging": hanging, "check.right": right}, CPU, 60)
    assert [row.get("error") for row in rows[1:]] == ["stopped at its limit of 3 s", 0.5]
    assert [row["passed"] for row in rows[1:]] == [False, True]
    child = str(rows[0]["child"])
    state = subprocess.run(["ps", "-o", "stat=", "-p", child], capture_output=True, text=True).stdout
    assert not state or state.startswith("Z"), "a process of the part still runs"


@pytest.mark.parametrize(("part", "code"), [(right, 0), (wrong, 1)])
def test_without_a_gpu_it_says_so_and_writes_a_page_only_if_asked(part, code, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(day, "PARTS", {"check.part": part})
    monkeypatch.setattr(day, "PAGE", tmp_path / "unasked.md")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    for arguments in ([], ["--to", str(page)]):
        result = CliRunner().invoke(day.main, ["--minutes", "1", *arguments])
        assert result.exit_code == code, result.output
        assert result.output.startswith("no GPU: this only tries itself at a tiny size on the CPU")
    assert not (tmp_path / "unasked.md").exists()
    text = page.read_text()
    assert f"| check.part | {1 - code} | {code} |" in text
    assert text.startswith("# Page\n\nBy hand.\n\n## Measured\n\nWritten by")
    assert text.endswith("\n\n## Next\n\nBy hand, too.\n")
    assert "old" not in text


def stopping(number: int, process: int, session: Session) -> None:
    session.report("one", True)
    os.kill(process, number)
    time.sleep(1000)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_it_has_found_is_written_if_it_is_stopped(number, tmp_path, monkeypatch) -> None:
    parts = {"check.stopping": partial(stopping, number, os.getpid()), "check.right": right}
    monkeypatch.setattr(day, "PARTS", parts)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        result = CliRunner().invoke(day.main, ["--to", str(tmp_path / "page.md")])
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 1
    text = (tmp_path / "page.md").read_text()
    assert "check.stopping, the whole part: stopped by a signal" in text
    assert "| check.stopping | 1 | 1 |" in text
    assert "check.right" not in text
