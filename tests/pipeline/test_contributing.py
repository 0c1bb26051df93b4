"""A loss, a method and a data source from outside: the files that CONTRIBUTING.md shows, added to a copy of the project."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT, TINY

FILES = [
    "cl/losses/margin.py",
    "pipeline/conf/loss/margin.yaml",
    "cl/methods/oneway.py",
    "pipeline/conf/method/oneway.yaml",
    "cl/sources/digits.py",
    "pipeline/conf/dataset/digits.yaml",
]


@pytest.fixture(scope="module")
def extended(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the six files."""
    folder = tmp_path_factory.mktemp("contributed") / "project"
    shutil.copytree(project, folder)
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    for name, text in zip(FILES, blocks, strict=True):
        assert not (folder / name).exists()
        assert f"`{name}`" in (ROOT / "CONTRIBUTING.md").read_text()
        (folder / name).write_text(text)
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=folder, capture_output=True, text=True)


def test_they_train_together(extended) -> None:
    sizes = [setting for setting in TINY if not setting.startswith("dataset.")]
    choices = ["loss=margin", "method=oneway", "dataset=digits", "evaluation=[knn]"]
    for stage in (["compose", *choices, *sizes], ["prepare"], ["pretrain"], ["evaluate", "knn"]):
        result = run(extended, f"pipeline.{stage[0]}", *stage[1:])
        assert result.returncode == 0, result.stderr
    provenance = json.loads((extended / "results/pretrain.provenance.json").read_text())
    assert provenance["parameters"]["loss"] == {"kind": "margin", "margin": 0.5}
    assert provenance["parameters"]["method"]["kind"] == "oneway"
    assert provenance["negatives"] == 31
    knn = json.loads((extended / "results/evaluate/knn.json").read_text())
    assert knn["knn_top1"] > 50  # digits are easy; chance is 10


def test_their_mistakes_are_named_like_all_others(extended) -> None:
    run(extended, "pipeline.compose", "loss=margin", "loss.margin=-1")
    assert "loss.margin=-1: input should be greater than 0" in run(extended, "pipeline.pretrain").stderr
    run(extended, "pipeline.compose", "loss=margin", "method=byol")
    assert (
        "method=byol gives no negatives, which loss=margin needs" in run(extended, "pipeline.pretrain").stderr
    )
