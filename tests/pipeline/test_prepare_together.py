"""The prepare stage in several processes: the same files, and what a killed process leaves."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.pictures import digest, shard_states, tree
from tests.support.project import ROOT, compose


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose raw images take some time to prepare."""
    folder = tmp_path_factory.mktemp("together")
    tree(folder / "raw/own", 40, (900, 700))
    settings = ["name=own", "shard_images=2", "shrink=8", "scenes.train=1", "scenes.val=1"]
    compose(folder, "dataset=folder", *(f"dataset.{setting}" for setting in settings))
    shutil.copy(ROOT / "dvc.yaml", folder)
    return folder


def start(folder: Path, processes: int) -> subprocess.Popen:
    variables = {"CL_RAW": "raw", "PYTHONPATH": str(ROOT), "CL_PROCESSES": str(processes)}
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.prepare"],
        cwd=folder,
        env={**os.environ, **variables},
        stderr=subprocess.PIPE,
        text=True,
    )


def prepare(folder: Path, processes: int) -> str:
    running = start(folder, processes)
    said = running.communicate(timeout=300)[1]
    assert running.returncode == 0, said
    return said


@pytest.mark.slow
def test_several_processes_write_what_one_writes_even_after_one_was_killed(template, tmp_path) -> None:
    alone, together = (shutil.copytree(template, tmp_path / name) for name in ("alone", "together"))
    prepare(alone, 1)
    running = start(together, 2)
    partial = together / "data/shards.partial"
    while len(list((partial / "notes").glob("*.note"))) < 5:
        assert running.poll() is None
        time.sleep(0.005)
    second = psutil.Process(running.pid).children()[1]
    second.send_signal(signal.SIGKILL)
    said = running.communicate(timeout=120)[1]
    assert running.returncode == 128 + signal.SIGKILL, said
    assert "process 1 of 2 was ended by SIGKILL, and the others with it; run the same command again" in said
    assert "Traceback" not in said
    assert not (together / "data/shards").exists()
    noted = {f"{path.stem}.tar" for path in (partial / "notes").glob("*.note")}
    finished = {name: state for name, state in shard_states(partial).items() if name in noted}
    assert len(finished) >= 5
    assert "84 images" in prepare(together, 2)
    assert finished.items() <= shard_states(together / "data/shards").items()
    changed = {name for name, _ in digest(together / "data").items() ^ digest(alone / "data").items()}
    assert changed == set()
    assert (together / "results/prepare.json").read_text() == (alone / "results/prepare.json").read_text()
