"""docker/entrypoint.sh on this machine; `docker/check` tests the image itself."""

import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest
from ruamel.yaml import YAML

from tests.support.commands import run, start, wait_for
from tests.support.project import ROOT


def test_every_stage_is_a_command() -> None:
    stages = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
    script = (ROOT / "docker/entrypoint.sh").read_text()
    accepted = re.search(r"^  (check \|.*)\)$", script, re.MULTILINE)[1].split(" | ")
    assert set(stages) < set(accepted)
    assert all((ROOT / f"pipeline/{stage}.py").is_file() for stage in accepted)
    shown = run(ROOT, "help")
    assert all(re.search(rf"\b{stage}\b", shown) for stage in accepted)
    assert run(ROOT) == shown
    assert "Usage: python -m pipeline.pretrain" in run(ROOT, "pretrain", "--help")


def test_what_cannot_run_is_refused_in_one_line(tmp_path: Path) -> None:
    """Without a project, outside the image, in a folder that is not empty, or misspelt."""
    expected = f"no dvc.yaml in {tmp_path}; start the container in a clone"
    assert run(tmp_path, "dvc", "repro", code=1).startswith(expected)
    assert run(tmp_path, "pretrain", code=1).startswith(expected)
    (tmp_path / "file").touch()
    assert "works only inside the image" in run(tmp_path, "init", code=1, CL_IMAGE="")
    assert "or an empty folder" in run(tmp_path, "init", code=1, CL_IMAGE="commit")
    assert run(tmp_path, "pretrian", code=1).startswith("unknown command pretrian")


def test_dvc_waits_while_its_stage_saves(slow_project: Path) -> None:
    process = start(slow_project, "dvc", "exp", "run", "-S", "seconds=60")
    wait_for(slow_project, "started", process)
    os.killpg(process.pid, signal.SIGTERM)  # to all processes, as Ctrl-C and `scancel` send it
    assert process.wait(timeout=60) == 143
    assert (slow_project / "saved").exists(), "a container would end with its first process"
    assert "failed to reproduce 'slow'" in process.communicate()[0], "DVC ran to the end"


def test_any_other_command_ends_at_once(slow_project: Path) -> None:
    process = start(slow_project, "sleep", "60")
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)  # until no process holds its output any more
    assert process.returncode == -signal.SIGTERM


@pytest.mark.slow
def test_only_one_dvc_runs_in_a_folder_and_a_killed_one_does_not_block_it(slow_project: Path) -> None:
    process = start(slow_project, "dvc", "exp", "run", "-S", "seconds=60")
    wait_for(slow_project, "started", process)
    refused = run(slow_project, "dvc", "repro", code=1)
    assert re.search(
        rf"^\S+ is working in {slow_project}; wait for it, or run this in another clone", refused
    )
    assert "slow" in run(slow_project, "dvc", "stage", "list"), "reading is allowed"
    for child in psutil.Process(process.pid).children(recursive=True):
        child.kill()
    process.communicate()
    assert process.returncode == 137
    rwlock = slow_project / ".dvc/tmp/rwlock"
    assert '"cmd"' in rwlock.read_text()
    # As in another container, where the same process id belongs to another process.
    rwlock.write_text(re.sub(r'"pid": \d+', f'"pid": {os.getpid()}', rwlock.read_text()))
    run(slow_project, "dvc", "exp", "run", "-S", "seconds=0")
    assert (slow_project / "out").read_text() == "done"
    assert (slow_project / ".dvc/tmp/entrypoint").read_text() == ""
