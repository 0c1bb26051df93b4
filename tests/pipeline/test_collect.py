"""Finished experiments found in a repository: by commit, from DVC's cache, and never from stale files."""

import json
import re
import shutil
import subprocess
import sys
from hashlib import md5
from pathlib import Path

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from cl.report.experiments import distinct
from pipeline import report
from pipeline.support.collect import collect
from pipeline.support.provenance import git
from tests.support.experiments import measured


class Repository:
    """A DVC repository with invented results: what `dvc exp run` leaves behind, without the training."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stages: dict[str, dict] = {}

    def put(
        self, stage: str, path: str, content: object, deps: dict[str, str] | None = None, kind: str = ""
    ) -> str:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        digest = md5(data).hexdigest() + kind
        file = self.folder / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        entry = self.stages.setdefault(stage, {"deps": [], "outs": []})
        entry["outs"].append({"path": path, "md5": digest})
        entry["deps"] += [{"path": name, "md5": hashed} for name, hashed in (deps or {}).items()]
        return digest

    def commit(self, params: dict, ref: str | None = None) -> None:
        yaml = YAML()
        lock = {"schema": "2.0", "stages": self.stages}
        for name, content in (("params.yaml", params), ("dvc.lock", lock)):
            with (self.folder / name).open("w") as file:
                yaml.dump(content, file)
        self.git("add", "-A")
        self.git("commit", "-qm", "run")
        if ref:
            self.git("update-ref", ref, "HEAD")

    def git(self, *arguments: str) -> None:
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run([*git, *arguments], cwd=self.folder, check=True)


@pytest.fixture(scope="module")
def empty(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    for arguments in (["git", "init", "-q", "-b", "main"], [sys.executable, "-m", "dvc", "init", "-q"]):
        subprocess.run(arguments, cwd=folder, check=True)
    return folder


@pytest.fixture
def repository(empty, tmp_path, monkeypatch) -> Repository:
    shutil.copytree(empty, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return Repository(tmp_path / "project")


PARAMS = {
    "seed": 0,
    "loss": {"kind": "dcl"},
    "optim": {"batch_size": 128},
    "bn_group": 32,
    "evaluations": {"knn": {"k": 20}},
    "transfers": {},
    "analyses": {},
    "baselines": {},
}
ARM = {"optim": {"base_lr": 0.12, "batch_size": 128}}


def fill(repository: Repository, top1: float, **used: object) -> None:
    repository.stages = {}
    model = repository.put("pretrain", "models/backbone.safetensors", top1)
    repository.put("pretrain", "results/pretrain.json", {"pretrain_loss": 1.0})
    repository.put(
        "pretrain",
        "results/pretrain.provenance.json",
        {
            "parameters": {"seed": 0, "loss": {"kind": "dcl"}, **used},
            "batch_size": 8,
            "bn_group": 4,
            "arm": ARM,
        },
    )
    epochs = repository.put("log", "epochs.csv", b"epoch,loss\n1,2.5\n")
    entries = [{"relpath": "epochs.csv", "md5": epochs}]
    repository.put("pretrain", "results/pretrain", entries, kind=".dir")
    repository.put(
        "evaluate@knn",
        "results/evaluate/knn.json",
        {"knn_top1": top1},
        {"models/backbone.safetensors": model},
    )
    numbers = [measured("knn", "top1", top1)._asdict()]
    made = {"parameters": {"evaluations.knn": {"k": 20}}, "measurements": numbers, "reduced": {"k": 6}}
    repository.put("evaluate@knn", "results/evaluate/knn.provenance.json", made)


def test_experiments_their_base_the_workspace_and_branches_are_collected(repository) -> None:
    fill(repository, 60.0)
    repository.commit(PARAMS)
    base = git("rev-parse", "HEAD")
    fill(repository, 61.0)
    repository.commit(PARAMS, ref=f"refs/exps/{base[:2]}/{base[2:]}/lucky-name")
    fill(repository, 62.0)
    repository.commit(PARAMS)
    (found, workspace, branch, start) = collect(print)
    assert [(e.name, e.metrics["knn_top1"]) for e in (found, workspace, branch, start)] == [
        ("lucky-name", 61.0),
        ("workspace", 62.0),
        ("main", 62.0),
        (base[:10], 60.0),
    ]
    assert found.measurements == [measured("knn", "top1", 61.0)]
    assert found.epochs == [{"epoch": "1", "loss": "2.5"}]
    assert len(found.revision) == 10
    assert workspace.revision == ""
    assert [e.name for e in distinct([found, workspace, branch])] == ["lucky-name", "workspace"]


def test_the_parameters_are_those_of_the_arm_that_few_images_allowed(repository) -> None:
    fill(repository, 61.0)
    repository.commit(PARAMS)
    for found in collect(print):
        used = found.params["optim"], found.params["bn_group"], found.params["evaluations"]
        assert used == ({"base_lr": 0.12, "batch_size": 8}, 4, {"knn": {"k": 6}})


def test_an_outdated_result_is_not_collected(repository) -> None:
    """Of a different model, with different parameters, and after such a pretraining."""
    fill(repository, 61.0)
    repository.stages["evaluate@knn"]["deps"] = [{"path": "models/backbone.safetensors", "md5": "0" * 32}]
    repository.commit(PARAMS)
    assert "knn_top1" not in collect(print)[0].metrics
    fill(repository, 61.0)
    repository.commit({**PARAMS, "evaluations": {"knn": {"k": 5}}})
    (found, _) = collect(print)
    assert "knn_top1" not in found.metrics
    assert re.match("evaluate/knn .*evaluations.knn", found.problems[0])
    fill(repository, 61.0, loss={"kind": "infonce", "alpha": None})
    repository.commit(PARAMS)
    told: list[str] = []
    assert collect(told.append) == []
    assert "workspace is left out: pretrain was made with a different loss" in told


def test_an_unreadable_branch_is_left_out_with_its_reason(repository) -> None:
    fill(repository, 61.0)
    repository.commit(PARAMS)
    repository.git("checkout", "-qb", "broken")
    Path("dvc.lock").write_text("<<<<<<< ours\n")
    repository.git("commit", "-qam", "conflict")
    repository.git("checkout", "-qb", "empty")
    Path("dvc.lock").write_text("schema: '2.0'\n")
    repository.git("commit", "-qam", "nothing")
    repository.git("checkout", "-q", "main")
    told: list[str] = []
    assert [experiment.name for experiment in collect(told.append)] == ["workspace", "main"]
    assert told[0].startswith("broken is left out: dvc.lock ")


def test_experiments_with_the_same_name_are_told_apart_by_commit(repository) -> None:
    fill(repository, 61.0)
    repository.commit(PARAMS, ref=f"refs/exps/ab/{'c' * 38}/main")
    first, _, second = collect(print)
    assert first.name == "main"
    assert second.name == f"main@{second.revision}"


def test_results_missing_from_the_cache_are_reported(repository) -> None:
    fill(repository, 61.0)
    repository.commit(PARAMS)
    digest = repository.stages["evaluate@knn"]["outs"][0]["md5"]
    (repository.folder / ".dvc/cache/files/md5" / digest[:2] / digest[2:]).unlink()
    told: list[str] = []
    assert "knn_top1" not in collect(told.append)[0].metrics
    assert re.match("workspace: 1 .*`dvc pull`", told[0])


def test_a_repository_without_finished_experiments_gives_a_one_line_error(repository) -> None:
    repository.stages = {}
    repository.commit(PARAMS)
    done = CliRunner().invoke(report.main, ["--all"])
    assert done.exit_code == 1
    assert re.fullmatch("Error: no experiment .*dvc exp run\n", done.output)
    assert not (repository.folder / "summary").exists()


def test_a_folder_outside_a_repository_gives_a_one_line_error(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(report.main, ["--all"])
    assert done.exit_code == 1
    assert done.output.startswith("Error: you are not inside of a DVC repository")
