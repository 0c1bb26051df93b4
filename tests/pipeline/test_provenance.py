"""Provenance: how a result was made, and its time and images over all sessions of its run."""

import hashlib
import io
import json
import os
import shutil
import signal
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from cl.console.progress import Progress, Usage
from cl.console.stop import StoppedError
from cl.training.checkpoints import Checkpoints
from pipeline.composition.compose import write
from pipeline.support import command, provenance
from tests.support.commands import git
from tests.support.project import TINY, copy_product
from tests.support.training import train_tiny

OVERRIDES = ["recipe=dcl/fig4_cifar10", "evaluation=[knn]", "seed=3", *TINY[3:]]


def silent(usage: Usage) -> Progress:
    return Progress("test", Console(file=io.StringIO()), usage=usage)


@pytest.fixture
def workspace(project, shard_folder, tmp_path, monkeypatch) -> Path:
    """The current folder: a copy of the project, outside Git, with shards and the parameters of a recipe."""
    folder = copy_product(project, tmp_path / "project")
    shutil.copytree(shard_folder, folder / "data" / "shards")
    write(folder / "params.yaml", OVERRIDES)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder.parent))
    monkeypatch.setattr(provenance, "loaded", {})
    return folder


def provenance_of(folder: Path, result: str) -> dict:
    return json.loads((folder / "results" / f"{result}.provenance.json").read_text())


def test_every_result_records_how_it_was_made(
    workspace, shard_folder, params, here, tmp_path, monkeypatch
) -> None:
    """Both trainings of a stage count, those of another stage do not; unknown values are null."""
    monkeypatch.setenv("CL_FUSED", "1")
    began = time.monotonic()
    with command.results("pretrain"):
        for part in ("a", "b"):
            train_tiny(
                shard_folder, params, here, silent(command.USAGE), checkpoints=Checkpoints(tmp_path / part)
            )
    took = time.monotonic() - began
    recorded = provenance_of(workspace, "pretrain")
    assert (recorded["stage"], recorded["recipe"], recorded["seed"]) == ("pretrain", "dcl/fig4_cifar10", 3)
    assert recorded["images_seen"] == 2 * 4 * 3 * 40
    assert 0 < recorded["seconds"] <= took + 0.1
    manifest = (shard_folder / "manifest.json").read_bytes()
    assert recorded["data_manifest_sha256"] == hashlib.sha256(manifest).hexdigest()
    assert recorded["commit"] is recorded["uncommitted_changes"] is None, "unknown without a repository"
    assert torch.__version__.startswith(recorded["versions"]["torch"])
    assert ("detectron2" in recorded["versions"]) == (find_spec("detectron2") is not None)
    assert ("cuda" in recorded["versions"]) == bool(recorded["hardware"]["gpus"])
    assert recorded["hardware"]["fused"] == bool(recorded["hardware"]["gpus"])

    with command.results("evaluate", "knn"):
        pass
    recorded = provenance_of(workspace, "evaluate/knn")
    assert recorded["stage"] == "evaluate@knn"
    assert recorded["images_seen"] is None


def test_a_stage_whose_parameters_were_changed_meanwhile_publishes_nothing(workspace) -> None:
    """DVC would record them beside the result. What a stage does not declare may change."""
    command.params()
    for changed, value in (("temperature", 0.5), ("seed", 4)):
        refused = pytest.raises(ValueError, match=rf"params.yaml was changed .*\({changed}\)")
        with refused, command.results("pretrain"):
            write(workspace / "params.yaml", [*OVERRIDES, f"{changed}={value}"])
        assert not list((workspace / "results").glob("[!.]*"))
    loaded = provenance.declared("pretrain")[1]
    assert loaded["seed"] == 3, "not what is in params.yaml now"
    write(workspace / "params.yaml", [*OVERRIDES, "evaluations.knn.k=5"])
    with command.results("pretrain"):
        pass
    assert provenance_of(workspace, "pretrain")["parameters"] == loaded


def test_parameters_that_another_run_has_written_are_named(workspace) -> None:
    with pytest.raises(ValueError, match=r"no evaluate 'linear' any more.* start again"):
        provenance.declared("evaluate", "linear")


@pytest.mark.slow
def test_a_resumed_stage_counts_both_sessions(workspace, shard_folder, params, here, tmp_path) -> None:
    """A finished training counts what it took then; the next stage in the same process counts nothing."""
    checkpoints = Checkpoints(tmp_path / "scratch")

    def stop(epoch: int) -> dict[str, float]:
        time.sleep(0.25)
        if epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return {}

    def train(**options: Any) -> None:  # four epochs of 3 steps of 40 images each
        with command.results("pretrain"):
            train_tiny(shard_folder, params, here, silent(command.USAGE), checkpoints=checkpoints, **options)

    with pytest.raises(StoppedError):
        train(each_epoch=stop)
    for _ in ("resumed", "finished"):
        began = time.monotonic()
        train()
        took = time.monotonic() - began
        recorded = provenance_of(workspace, "pretrain")
        assert recorded["images_seen"] == 4 * 3 * 40
        assert recorded["seconds"] > took + 0.4
    with command.results("evaluate", "knn"):
        pass
    other = provenance_of(workspace, "evaluate/knn")
    assert other["images_seen"] is None
    assert other["seconds"] < 0.5


def test_uncommitted_and_untracked_code_is_recorded(workspace) -> None:
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
        git(workspace, *arguments)
    for file, changed in {
        "params.yaml": False,  # recorded as parameters
        "cl/features/knn.py": True,
        "cl/losses/mine.py": True,
        "pipeline/conf/loss/mine.yaml": True,
        "cl/losses/__pycache__/mine.py": False,
        "notes.py": False,
    }.items():
        (workspace / file).parent.mkdir(exist_ok=True)
        with (workspace / file).open("a") as text:
            text.write("# more\n")
        assert provenance.code() == (provenance.git("rev-parse", "HEAD"), changed), file
        git(workspace, "stash", "-qua")
