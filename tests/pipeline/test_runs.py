"""A run's folder of checkpoints: found by parameters and data, whatever the code; which code saved it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cl.runtime import machine
from cl.training import start
from pipeline.composition.compose import write
from pipeline.support import locations, runs
from tests.support.project import TINY, copy_product

EDITED = "cl/training/optim.py"


@pytest.fixture(scope="module")
def prepared(project_with_shards) -> Path:
    start.save(start.Start(), project_with_shards / "models/start.safetensors")
    for name in ("backbone", "method"):
        (project_with_shards / f"models/{name}.safetensors").write_text(name)
    return project_with_shards


@pytest.fixture
def workspace(prepared, tmp_path, monkeypatch) -> Iterator[Path]:
    """The current folder: a copy of the project that a test may change."""
    folder = copy_product(prepared, tmp_path / "project")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CL_SCRATCH", str(tmp_path / "scratch"))
    write(folder / "params.yaml", TINY)
    return folder


def key(*stage: str, **more: str) -> str:
    with runs.begin(*stage, **more) as run:
        return run.notes["run_key"]


def interrupt(*, after_a_checkpoint: bool) -> dict:
    """Begin a run or continue it, and leave before it is finished; returns its notes."""
    with pytest.raises(KeyboardInterrupt), runs.begin("pretrain") as run:
        if after_a_checkpoint:
            (run.folder / "part").mkdir(exist_ok=True)
            (run.folder / "part/step-1.safetensors").touch()
        raise KeyboardInterrupt
    return run.notes


def test_what_another_run_has_its_own_checkpoints(workspace) -> None:
    before = key("pretrain"), key("evaluate", "knn")
    assert len({*before, key("evaluate", "linear"), key("baseline", "supervised")}) == 4
    for change in ("loss=dclw", "seed=1", "optim.base_lr=0.1"):
        write(workspace / "params.yaml", [*TINY, change])
        assert key("pretrain") != before[0], change
    write(workspace / "params.yaml", [*TINY, "evaluation=[knn]"])
    assert key("pretrain") == before[0], "an evaluation has nothing to do with pretraining"
    for file, changed in (("data/shards/manifest.json", {0, 1}), ("models/start.safetensors", {0})):
        content = (workspace / file).read_bytes()
        (workspace / file).write_bytes(content + b" ")
        after = key("pretrain"), key("evaluate", "knn")
        assert {number for number in (0, 1) if after[number] != before[number]} == changed, file
        (workspace / file).write_bytes(content)
    for role in ("groups", "positive", "within"):
        column, known = workspace / f"data/shards/train_{role}.npy", key("pretrain")
        column.write_bytes(b"values")
        with_column = key("pretrain")
        column.write_bytes(b"others")
        assert len({known, with_column, key("pretrain")}) == 3, role
        column.unlink()
    for model in ("backbone", "method"):
        (workspace / f"models/{model}.safetensors").write_text("of other weights")
        assert key("evaluate", "knn") != before[1], model
        (workspace / f"models/{model}.safetensors").write_text(model)
    foreign = {key("evaluate", "knn", encoder=encoder) for encoder in ("1", "2", "")}
    assert len(foreign) == 3
    (workspace / "models/backbone.safetensors").unlink()
    assert key("evaluate", "knn", encoder="1") in foreign, "without pretrained models too"
    (workspace / EDITED).write_text("other = 'code'\n")
    assert key("pretrain") == before[0]


def test_copies_of_the_project_share_runs_but_not_those_of_baselines(
    workspace, tmp_path, monkeypatch
) -> None:
    """Experiments with equal baselines may run at the same time, in clones that share CL_SCRATCH."""
    first = key("pretrain"), key("baseline", "supervised")
    shutil.copytree(workspace, tmp_path / "clone")
    monkeypatch.chdir(tmp_path / "clone")
    assert key("pretrain") == first[0]
    assert key("baseline", "supervised") != first[1]


def test_a_baseline_in_a_temporary_copy_resumes_in_another_of_the_same_experiment(
    workspace, tmp_path, monkeypatch
) -> None:
    """DVC gives each copy another name. Equal baselines of other experiments may run at the same time."""
    keys = []
    for name, change in (("tmpa", "seed=0"), ("tmpb", "++seed=0"), ("tmpc", "loss=dclw")):
        folder = tmp_path / ".dvc/tmp/exps" / name
        shutil.copytree(workspace, folder)
        write(folder / "params.yaml", [*TINY, change])
        monkeypatch.chdir(folder)
        keys.append(key("baseline", "supervised"))
    assert keys[0] == keys[1] != keys[2]


def test_a_run_whose_code_has_changed_stops_with_the_two_ways_on(workspace, monkeypatch) -> None:
    folder = locations.scratch() / interrupt(after_a_checkpoint=True)["run_key"]
    with (workspace / EDITED).open("a") as file:
        file.write("# edited\n")
    (workspace / "cl/training/added.py").touch()
    with pytest.raises(ValueError, match="this run's checkpoints") as refused:
        interrupt(after_a_checkpoint=False)
    for part in ("cl/training/added.py", EDITED, "CL_CODE_CHANGED=continue", f"rm -r {folder}"):
        assert part in str(refused.value)
    monkeypatch.setenv("CL_CODE_CHANGED", "continue")
    changed = ["cl/training/added.py", EDITED]
    assert interrupt(after_a_checkpoint=False)["code_changed_during_run"] == changed
    monkeypatch.delenv("CL_CODE_CHANGED")
    assert interrupt(after_a_checkpoint=False)["code_changed_during_run"] == changed, "also when it goes on"
    (workspace / "cl/training/added.py").unlink()
    with pytest.raises(ValueError, match=r"\(cl/training/added.py changed\)"):
        interrupt(after_a_checkpoint=False)
    shutil.rmtree(folder)
    assert "code_changed_during_run" not in interrupt(after_a_checkpoint=False)
    assert not folder.exists(), "nothing was saved"


def test_another_precision_on_another_machine_is_said_and_recorded(workspace, monkeypatch, capsys) -> None:
    assert "code_changed_during_run" not in interrupt(after_a_checkpoint=True)
    monkeypatch.setattr(machine, "gpus", lambda: 1)
    monkeypatch.setattr(machine, "slow_bf16", lambda: False)
    assert interrupt(after_a_checkpoint=False)["code_changed_during_run"] == ["precision"]
    assert "precision=auto was fp32 so far, and is bf16 on this machine" in capsys.readouterr().out


def test_without_checkpoints_code_may_change(workspace) -> None:
    interrupt(after_a_checkpoint=False)
    (workspace / EDITED).write_text("other = 'code'\n")
    assert interrupt(after_a_checkpoint=True).keys() == {"run_key"}
