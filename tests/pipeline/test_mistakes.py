"""Mistakes after a finished run: nothing is lost, and the answer says what to do."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.repo import Repo
from PIL import Image as Picture

from cl.config.params import Transfer
from pipeline.check import DETECTION, summarise_detection
from pipeline.composition.compose import write
from tests.support.clone import SIZES, Clone, finished
from tests.support.stages import Stage, answers


@pytest.fixture(scope="module")
def clone(project, tmp_path_factory) -> Clone:
    return finished(project, tmp_path_factory)


MISTAKES = {
    "exp run -S loss=dclx": "loss=dclx does not exist; did you mean dcl? Choices: barlow_twins, ",
    "exp run -S dataset=unlabelled -S dataset.name=~/Vögel(1)": "/Vögel(1); put the images there",
    "exp run --temp -S los=dclw": "los is not a parameter; did you mean loss?",
    f"exp run {' '.join(f'-S {size}' for size in SIZES)} -S optim.batch_size=4096": "batch_size=4096 exceeds",
    "repro": "params.yaml: optim.batch_size=1: input should be greater than 1",
}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, id=each[-30:], marks=[pytest.mark.slow] if number in range(1, 4) else [])
        for number, each in enumerate(MISTAKES)
    ],
)
def test_a_mistake_changes_nothing_and_is_answered_in_a_sentence(command, clone) -> None:
    """`dvc repro` after an edit by hand; the folder is missed only when `check` looks for the raw data."""
    before = clone.files()
    if command == "repro":
        path = clone.folder / "params.yaml"
        path.write_text(path.read_text().replace("  batch_size: 32\n", "  batch_size: 1\n", 1))
    told = clone.dvc(*command.split(), code=255)
    assert MISTAKES[command] in told
    assert "Traceback" not in told
    clone.run("git", "checkout", "-q", "params.yaml")
    assert clone.files() == before


def test_nothing_is_composed_beside_a_run_in_the_same_folder(clone) -> None:
    """Which would read the parameters of another. A run that was killed leaves its entry in DVC's file."""
    before, lock = clone.files(), clone.folder / ".dvc/tmp/rwlock"

    def told(pid: int, mode: str, *command: str) -> str:
        info = {"pid": pid, "cmd": "exp run"}
        lock.write_text(json.dumps({mode: {"models": [info] if mode == "read" else info}}))
        return clone.run(*command, "loss=dclx", code=255 if command[0] == "dvc" else 1)

    by_dvc, by_hand = ("dvc", "exp", "run", "--queue", "-S"), ("python", "-m", "pipeline.compose")
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as running:
        for mode, command in (("write", by_dvc), ("read", by_hand)):
            assert f"(process {running.pid}) is running in this folder" in told(running.pid, mode, *command)
    for pid in (running.pid, os.getpid()):
        assert "loss=dclx does not exist" in told(pid, "write", *by_hand), "killed, or started this command"
    lock.unlink()
    assert clone.files() == before


def test_mistakes_leave_nothing_to_run(clone) -> None:
    assert clone.dvc("status").split() == ["check:", "always", "changed"]


def test_a_stage_that_lacks_something_says_how_to_get_it(clone) -> None:
    """And it refuses images of another data set."""
    shards, kept = clone.folder / "data/shards", clone.folder / "kept"
    shutil.move(shards, kept)
    stages = [Stage(("pretrain",)), Stage(("evaluate", "knn"))]
    for answer in answers(clone.folder, stages):
        assert answer.code == 1
        assert "data/shards is missing: run `dvc repro`, or `dvc checkout data/shards`" in answer.stderr
    shutil.move(kept, shards)
    clone.run("python", "-m", "pipeline.compose", *SIZES, "dataset.val_patches=4")
    (answer,) = answers(clone.folder, stages[:1])
    for part in ("dataset.val_patches=3", "params.yaml has 4", "run `dvc repro prepare`"):
        assert part in answer.stderr
    clone.run("git", "checkout", "-q", "params.yaml")


def test_a_stage_that_fails_says_how_to_repeat_and_how_to_undo_the_run(clone) -> None:
    before = clone.files()
    told = clone.exp(*SIZES, "optim.base_lr=0.2", code=255, environ={"CL_CHECKPOINT_SECONDS": "soon"})
    again, undo = told.partition("Error: ")[2].partition("to undo it instead: ")[::2]
    options = " ".join(f"-S {shlex.quote(override)}" for override in [*SIZES, "optim.base_lr=0.2"])
    assert f"to start this run again: dvc exp run {options}\n" in again
    assert not (clone.folder / "models/backbone.safetensors").exists()
    assert undo.count("\n") == 1, "DVC adds nothing below"
    clone.run("sh", "-c", undo.splitlines()[0])
    after = clone.files()
    assert {path for path in before if before[path] != after.get(path)} == set()
    assert clone.dvc("status").split() == ["check:", "always", "changed"]


def test_a_check_by_hand_leaves_its_output_alone(clone) -> None:
    """It may be a link into DVC's cache."""
    checked = clone.folder / "data/checked.txt"
    before = checked.stat().st_mtime_ns
    (answer,) = answers(clone.folder, [Stage(("check",))])
    assert answer.code == 0, answer.stderr
    assert checked.stat().st_mtime_ns == before


def test_the_check_tells_own_images_apart(clone, tmp_path) -> None:
    """By names and sizes; what the system keeps beside them does not count, and shards need no images."""
    for number in range(3):
        path = tmp_path / f"raw/own/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Picture.new("L", (40, 40), number).save(path)
    own = ["dataset=unlabelled", "dataset.name=own", "dataset.holdout=0.4", "transfer=[]"]
    clone.run("python", "-m", "pipeline.compose", *own)

    def checked(raw: Path = tmp_path / "raw") -> str:
        environ = {"DVC_STAGE": "check", "CL_RAW": str(raw)}
        (answer,) = answers(clone.folder, [Stage(("check",), environ)])
        assert answer.code == 0, answer.stderr
        return (clone.folder / "data/checked.txt").read_text()

    (clone.folder / "data/checked.txt").unlink()  # a link into the cache
    first = checked()
    shutil.copytree(tmp_path / "raw", tmp_path / "moved")
    (tmp_path / "raw/own/.DS_Store").touch()
    assert checked() == checked(tmp_path / "moved") == first
    Picture.new("RGB", (90, 90), "red").save(tmp_path / "raw/own/1.png")
    changed = checked()
    (tmp_path / "raw/own/2.png").rename(tmp_path / "raw/own/3.png")
    assert len({first, changed, checked()}) == 3
    clone.run("git", "checkout", "-q", "params.yaml")
    clone.dvc("checkout", "--force")


def test_the_check_tells_raw_detection_data_apart(scenes_folder, params, tmp_path, monkeypatch) -> None:
    """By content, wherever it is; what is not on this machine keeps its summary."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_STAGE", "check")
    Repo.init(no_scm=True).close()
    raw, chosen = shutil.copytree(scenes_folder, tmp_path / "raw"), {"scenes": params.transfers["voc_c4"]}
    for name in ("voc_c4", "coco_c4"):
        chosen[name] = params.transfers[name].model_copy(update={"data": "raw"})

    def summaries(raw: Path = raw, chosen: dict[str, Transfer] = chosen) -> dict[str, str]:
        summarise_detection(chosen, raw)
        return {path.stem: path.read_text() for path in DETECTION.iterdir()}

    first = summaries(tmp_path / "nowhere")
    found = summaries()
    assert len({first["coco_c4"], *found.values()}) == 3
    moved = shutil.copytree(raw, tmp_path / "moved", copy_function=shutil.copyfile)  # with new times
    assert summaries(moved) == summaries(tmp_path / "nowhere") == found
    annotation = raw / "VOCdevkit/VOC2007/Annotations/000001.xml"
    annotation.write_text(annotation.read_text().replace("<xmin>", "<xmax>", 1))
    assert {name for name, text in summaries().items() if text != found[name]} == {"voc_c4"}
    assert summaries(chosen={}) == {"none": first["scenes"]}


@pytest.mark.parametrize(
    ("override", "processes", "expected"),
    [
        ("evaluations.knn.k=5000", "1", "k=5000 needs at least"),
        ("optim.base_lr=0.3", "3", "batch_size=32 must be a multiple of the 3 processes"),
    ],
)
def test_the_check_compares_parameters_with_images_and_ranks(clone, override, processes, expected) -> None:
    write(clone.folder / "params.yaml", [*SIZES, override])
    (answer,) = answers(clone.folder, [Stage(("check",), {"CL_PROCESSES": processes})])
    clone.run("git", "checkout", "-q", "params.yaml")
    assert answer.code == 1
    assert expected in answer.stderr
