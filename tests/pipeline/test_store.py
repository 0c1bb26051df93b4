"""DVC with raw data and shards in an object store: no experiment needs a shard on disk."""

import shutil
from pathlib import Path

import fsspec
import pytest

from tests.support.clone import Clone
from tests.support.pictures import tree
from tests.support.server import object_store

STORE = "s3://bucket/shards/"
SETTINGS = [
    *("dataset=folder", "dataset.name=own", "dataset.crop=32", "dataset.resize=32", f"dataset.store={STORE}"),
    *("dataset.shard_images=50", "dataset.scenes.train=2", "dataset.scenes.val=2", "optim.batch_size=32"),
    *("optim.epochs=1", "optim.monitor.k=5", "optim.monitor.bank=40", "optim.monitor.queries=10"),
    *("evaluation=[knn]", "evaluations.knn.k=5", "transfer=[]", "analysis=[]", "baseline=[]"),
]


def shards_on_disk(clone: Clone) -> list[Path]:
    return [path for path in clone.folder.rglob("*.tar") if ".git" not in path.parts]


@pytest.mark.slow
def test_experiments_run_with_nothing_but_manifest_and_index(project, tmp_path, monkeypatch) -> None:
    with object_store() as store:
        tree(tmp_path / "raw/own", 60, (48, 40))
        fsspec.filesystem("s3").put(f"{tmp_path}/raw/", "bucket/raw/", recursive=True)
        monkeypatch.setenv("CL_RAW", "s3://bucket/raw")
        first = Clone(tmp_path / "first")
        shutil.copytree(project, first.folder)
        for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
            first.run("git", *arguments)
        assert "prepare: 124 images" in first.exp(*SETTINGS)
        assert not shards_on_disk(first)
        first.dvc("remote", "add", "-d", "remote", str(tmp_path / "remote"))
        first.run("git", "add", "-A")
        first.run("git", "commit", "-qm", "first run")
        first.dvc("push")
        monkeypatch.delenv("CL_RAW")

        other = Clone(tmp_path / "other")
        first.run("git", "clone", "-q", str(first.folder), str(other.folder))
        other.dvc("pull")
        store.requests.clear()
        said = other.exp(*SETTINGS, "loss=dclw")
        assert "Stage 'prepare' didn't change, skipping" in said
        assert "pretrain: simclr with dclw, 120 images" in said
        other.exp(*SETTINGS, "loss=infonce", options=("--queue", "--name", "queued"))
        other.dvc("exp", "run", "--run-all")
        assert other.dvc("exp", "show", "--csv").count("queued") == 1
        assert not shards_on_disk(other)
        assert any(path.startswith("/bucket/shards/") for _, path, _ in store.requests)

        files = fsspec.filesystem("s3")
        files.rm(next(name for name in files.ls(STORE) if "train-000001" in name))
        said = other.exp(*SETTINGS, "loss=sigmoid", code=255)
        assert "is missing: run `dvc repro -f prepare`" in said
