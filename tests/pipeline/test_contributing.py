"""The loss, method, source, evaluation and command of CONTRIBUTING.md, added to a copy of the project."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.support.commands import git
from tests.support.processes import join, start_fork
from tests.support.project import ROOT, TINY
from tests.support.resnets import save_encoder
from tests.support.stages import Stage, answers_of_copy

FILES = [
    "cl/losses/margin.py",
    "pipeline/conf/loss/margin.yaml",
    "cl/methods/oneway.py",
    "pipeline/conf/method/oneway.yaml",
    "cl/sources/digits.py",
    "pipeline/conf/dataset/digits.yaml",
    "cl/evaluations/centroid.py",
    "pipeline/conf/evaluation/centroid.yaml",
]
KINDS = [Path(name).stem for name in FILES if name.endswith(".py")]
COMMAND = ["cl/commands/width.py", "cl/commands/__init__.py"]  # the last grows
SUITES = [
    "tests/evaluations/test_contract.py",
    "tests/methods/test_contract.py",
    "tests/pipeline/test_dependencies.py",
    "tests/sources/test_sources.py",
]


@pytest.fixture(scope="module")
def extended(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the eight files of kinds and the golden values of the new method."""
    folder = tmp_path_factory.mktemp("contributed") / "project"
    shutil.copytree(project, folder)
    paste(folder, *FILES)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "extended")
    added = run(folder, "tests.support.golden")
    assert "1 golden values added" in added.stdout, added.stdout + added.stderr
    return folder


def paste(folder: Path, *names: str) -> None:
    """Write files as CONTRIBUTING.md prints them."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", page, re.DOTALL)
    for name, text in zip([*FILES, *COMMAND], blocks, strict=True):
        assert f"`{name}`" in page
        if name in names:
            assert (folder / name).exists() == (name == COMMAND[-1])
            with (folder / name).open("a") as file:
                file.write(text)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=folder, capture_output=True, text=True)


def use_the_copy(folder: Path) -> None:
    """In a fork, whose libraries are imported already."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "cl"]:
        del sys.modules[name]
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    cl, commands = importlib.import_module("cl"), importlib.import_module("cl.commands")
    with Path("out.txt").open("w") as file, redirect_stdout(file):
        print(cl.__file__, cl.width("encoder.safetensors"))
        commands.main(["width", "--encoder", "encoder.safetensors"], standalone_mode=False)


def test_the_command_answers(tmp_path) -> None:
    shutil.copytree(ROOT / "cl", tmp_path / "cl", ignore=shutil.ignore_patterns("__pycache__"))
    paste(tmp_path, *COMMAND)
    offered = tmp_path / "cl/__init__.py"
    offered.write_text(offered.read_text().replace("__all__ = [", '__all__ = [\n    "width",'))
    save_encoder(tmp_path / "encoder.safetensors")
    join([start_fork(use_the_copy, tmp_path)])
    assert (tmp_path / "out.txt").read_text() == f"{offered} 64\n64\n"


@pytest.mark.slow
def test_they_train_together(extended) -> None:
    sizes = [setting for setting in TINY if not setting.startswith("dataset.")]
    choices = ["loss=margin", "method=oneway", "dataset=digits", "evaluation=[knn,centroid]", "analysis=[]"]
    stages = [
        ("compose", *choices, *sizes),
        ("prepare",),
        ("weights",),
        ("pretrain",),
        ("evaluate", "knn"),
        ("evaluate", "centroid"),
    ]
    for answer in answers_of_copy(extended, [Stage(stage) for stage in stages]):
        assert answer.code == 0, answer.stderr
    provenance = json.loads((extended / "results/pretrain.provenance.json").read_text())
    assert provenance["parameters"]["loss"] == {"kind": "margin", "margin": 0.5}
    assert provenance["parameters"]["method"]["kind"] == "oneway"
    assert provenance["negatives"] == 31
    assert provenance["sizes"] == {}
    for name in ("knn", "centroid"):
        metrics = json.loads((extended / f"results/evaluate/{name}.json").read_text())
        assert metrics[f"{name}_top1"] > 50  # digits are easy; chance is 10


@pytest.mark.slow
def test_the_suites_include_them_without_another_edit(extended) -> None:
    """The tests that are derived from the files on disk, and the dependencies that dvc.yaml names."""
    result = run(
        extended, "pytest", "-vv", "--assert=plain", "-k", " or ".join([*KINDS, "dependencies"]), *SUITES
    )
    assert result.returncode == 0, result.stdout[-5000:]
    for kind in KINDS:
        assert re.search(rf"{kind}.*PASSED", result.stdout), kind
    assert "test_dependencies_are_exactly_what_a_stage_imports[pretrain] PASSED" in result.stdout
