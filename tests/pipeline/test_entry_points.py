"""What entry points share: help, answers to mistakes, and means over seeds."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cl.runtime.registry import kinds
from pipeline.support import command
from tests.support.project import ROOT
from tests.support.stages import Stage, answers

STAGES = sorted(path.stem for path in (ROOT / "pipeline").glob("[!_]*.py"))


def test_every_stage_and_tool_has_help() -> None:
    for name, answer in zip(STAGES, answers(ROOT, [Stage((name, "--help")) for name in STAGES]), strict=True):
        assert answer.code == 0, name
        assert answer.stdout.startswith("Usage: "), name


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["/bin/sh", "pipeline/find_python.sh"], "There is no python on the path"),
        ([sys.executable, "-S", "-m", "pipeline.check"], "lacks the packages of this project"),
    ],
)
def test_an_environment_that_is_not_on_the_path_is_named(command, message, project, tmp_path) -> None:
    result = subprocess.run(command, cwd=project, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert result.returncode == 1
    assert message in result.stderr
    assert "run `make .venv`, and then `export PATH=$PWD/.venv/bin:$PATH`" in result.stderr


def test_make_asks_for_git(project, tmp_path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(project / name, tmp_path / name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/installed").touch()
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    result = subprocess.run(["make"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode
    assert "DVC needs Git: run `git init && git add -A && git commit -m start` here first" in result.stdout


LOGGERS = ", ".join(kinds("console.loggers"))
MISTAKES = [
    (Stage(("pretrain",)), "run `dvc repro"),
    (Stage(("transfer", "voc_c4")), "data/detection/voc_c4.txt is missing: run `dvc repro"),
    (Stage(("evaluate", "knn")), "run `dvc repro"),
    (Stage(("analyze", "npc")), "run `dvc repro"),
    (Stage(("plan",)), "run `dvc repro"),
    (Stage(("baseline", "random")), "run `dvc repro"),
    (Stage(("evaluate", "knn", "--prefix", "module.")), "--prefix module. requires --backbone FILE"),
    (
        Stage(("evaluate", "knm")),
        "evaluations in params.yaml does not contain 'knm'; choose one of knn, linear, ",
    ),
    (Stage(("analyze", "nppc")), "analyses in params.yaml does not contain 'nppc'; choose one of npc, "),
    (Stage(("prepare",), {"CL_LOG": "tensorbord"}), f"CL_LOG=tensorbord is unknown; choose from {LOGGERS}"),
]


def test_every_stage_reports_mistakes_in_one_line_before_anything_runs(project) -> None:
    found = answers(project, [stage for stage, _ in MISTAKES])
    for (stage, message), answer in zip(MISTAKES, found, strict=True):
        assert answer.code == 1, stage
        assert "Traceback" not in answer.stderr, answer.stderr
        assert message in answer.stderr, stage
    assert not list(project.rglob("*.partial"))


def test_each_of_several_seeds_has_a_folder(tmp_path) -> None:
    def run(seed: int, folder: Path) -> tuple[int, Path, bool]:
        return seed, folder.relative_to(tmp_path), folder.is_dir()

    results, baseline = (command.Results(tmp_path, each) for each in (None, "random"))
    assert results.over_seeds("knn", run, [3, 9]) == [(n, Path(f"seed-{n}"), True) for n in (3, 9)]
    assert results.over_seeds("knn", run, [4]) == [(4, Path(), True)]
    assert baseline.over_seeds("knn", run, [4]) == [(4, Path("knn"), True)]
