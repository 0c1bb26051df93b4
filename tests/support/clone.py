"""A copy of the project in which DVC runs as a user runs it, at the smallest sizes."""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.composition.compose import write
from tests.support import programs
from tests.support.commands import environment
from tests.support.project import TINY

KNN = [*TINY, "dataset.scenes.train=8", "dataset.scenes.val=4", "evaluation=[knn]", "evaluations.knn.k=5"]
KNN += ["optim.monitor.k=5", "optim.monitor.bank=40", "optim.monitor.queries=20"]
DETECTION = {"iterations": 2, "batch_size": 2, "reference_batch": 2, "milestones": "[]", "warmup": 0}
KNN += ["backbone.width=0.25"]
SIZES = [*KNN, "transfer=[voc_c4]", "analysis=[neighbours]", "baseline=[random]"]
SIZES += [f"transfers.voc_c4.{key}={value}" for key, value in {**DETECTION, "precise_bn": 1}.items()]


class Clone:
    """A copy of the project under Git, and what its first `dvc repro` said."""

    def __init__(self, folder: Path, output: str = "") -> None:
        self.folder, self.output = folder, output

    def run(self, *arguments: str, code: int = 0, environ: Mapping[str, str] = {}) -> str:
        variables = environment() | dict(environ)
        variables["PATH"] = f"{programs.folder()}{os.pathsep}{variables['PATH']}"
        result = subprocess.run(arguments, cwd=self.folder, env=variables, capture_output=True, text=True)
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout + result.stderr

    def dvc(self, *arguments: str, code: int = 0, environ: Mapping[str, str] = {}) -> str:
        return self.run("dvc", *arguments, code=code, environ=environ)

    def exp(
        self,
        *overrides: str,
        options: tuple[str, ...] = (),
        code: int = 0,
        environ: Mapping[str, str] = {},
    ) -> str:
        settings = [argument for override in overrides for argument in ("-S", override)]
        return self.dvc("exp", "run", *options, *settings, code=code, environ=environ)

    def files(self) -> dict[Path, tuple[bytes, bool]]:
        """The content of every file but those that Git, DVC and Python keep for themselves; is it a link?"""
        own = {".git", "tmp", "__pycache__"}
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        paths = [path for path in paths if not own & set(path.relative_to(self.folder).parts)]
        return {path: (path.read_bytes(), path.is_symlink()) for path in paths}

    def metrics(self, name: str) -> dict[str, float]:
        return json.loads((self.folder / "results" / f"{name}.json").read_text())


def finished(project: Path, temporary: pytest.TempPathFactory) -> Clone:
    """A copy of the project after `dvc repro`, committed: it runs once for all test files and workers."""
    base = temporary.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    done = shared / "finished.json"
    with (shared / "finished.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            first = _run(project, shared / "finished")
            done.write_text(json.dumps({"output": first.output}))
    folder = temporary.mktemp("finished") / "project"
    shutil.copytree(shared / "finished", folder, symlinks=True)
    return Clone(folder, **json.loads(done.read_text()))


def _run(project: Path, folder: Path) -> Clone:
    shutil.copytree(project, folder)
    clone = Clone(folder)
    write(folder / "params.yaml", SIZES)
    clone.run("git", "init", "-q")
    clone.run("git", "add", "-A")
    clone.run("git", "commit", "-qm", "start")
    clone.output = clone.dvc("repro")
    clone.run("git", "add", "dvc.lock")
    clone.run("git", "commit", "-qm", "first run")
    return clone
