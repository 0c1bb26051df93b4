"""A tiny DVC project for the scripts of docker/."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import environment

DVC_YAML = """
stages:
  slow:
    cmd: python slow.py
    params: [seconds]
    outs: [out]
"""
SLOW = """
import os, pathlib, signal, sys, time
from cl.console.stop import terminate_when_exists
terminate_when_exists(pathlib.Path(os.environ["CL_STOP"]))
def save(number, frame):
    time.sleep(1)
    pathlib.Path("saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
pathlib.Path("started").touch()
time.sleep(float(pathlib.Path("params.yaml").read_text().split()[1]))
pathlib.Path("out").write_text("done")
"""


@pytest.fixture(scope="session")
def slow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slow") / "project"
    folder.mkdir()
    (folder / "dvc.yaml").write_text(DVC_YAML)
    (folder / "slow.py").write_text(SLOW)
    (folder / "params.yaml").write_text("seconds: 0\n")
    (folder / ".gitignore").write_text("/out\n/scratch\n")
    for command in ("git init -q", "dvc init -q", "git add -A", "git commit -q -m first"):
        subprocess.run(command.split(), cwd=folder, env=environment(), check=True)
    return folder


@pytest.fixture
def slow_project(slow_template: Path, tmp_path: Path) -> Path:
    """A DVC project with one stage that takes `seconds`, plus a second to save when it is stopped."""
    return shutil.copytree(slow_template, tmp_path / "project")
