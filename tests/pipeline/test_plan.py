"""What an experiment will cost: the arithmetic, and a plan of a tiny project, which stays as it was."""

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import plan
from pipeline.support import forecast
from pipeline.support.composition import write
from pipeline.support.workplace import Ran, copy_of_project
from tests.support.commands import wait_for
from tests.support.stages import Answer, Stage, answers

SETTINGS = ["optim.batch_size=32", "optim.epochs=40", "views.random.size=16"]
SETTINGS += ["optim.monitor.k=5", "optim.monitor.bank=40", "optim.monitor.queries=20"]
SETTINGS += ["analysis=[]", "baseline=[]", "evaluation=[knn]", "transfer=[voc_c4_24k]", "evaluations.knn.k=5"]


@pytest.fixture(scope="module")
def prepared(project_with_shards) -> Path:
    write(project_with_shards / "params.yaml", SETTINGS)
    return project_with_shards


def contents(folder: Path) -> dict[str, str]:
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and "__pycache__" not in p.parts]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def planned(folder: Path, *arguments: str) -> Answer:
    (answer,) = answers(folder, [Stage(("plan", *arguments))])
    return answer


@pytest.mark.slow
def test_a_plan_names_every_stage_and_changes_nothing(prepared) -> None:
    before = contents(prepared)
    answer = planned(prepared, "--gpu-tflops", "100", "--images-per-second", "1000")
    assert answer.code == 0, answer.stderr
    assert contents(prepared) == before
    lines = answer.stdout.splitlines()
    assert [line.split()[0] for line in lines[:5]] == [
        "stage",
        "pretrain",
        "evaluate@knn",
        "transfer@voc_c4_24k",
        "total",
    ]
    assert float(lines[1].split()[1]) < float(lines[4].split()[1])
    assert "not measured" in lines[3]
    assert lines[5].startswith("transfer@voc_c4_24k: ")
    said = "\n".join(lines[6:])
    assert "The data workers alone deliver" in said
    assert "free now: 120 of the 120 images (an estimate, from " in said
    assert (
        "With 100 TFLOP/s and data at 1000 images/s, pretraining takes 0.00107 hours, limited by data" in said
    )
    assert "Later: pretraining sees views of 16 px, evaluations use images of 32 px" in said
    assert "Later: transfers.voc_c4_24k will need " in said


@pytest.mark.slow
def test_a_rehearsal_in_two_processes(prepared, monkeypatch) -> None:
    monkeypatch.chdir(prepared)
    monkeypatch.setenv("CL_PROCESSES", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with copy_of_project() as place:
        place.run("weights")
        ran = place.rehearse("pretrain")
        assert (place.folder / "models" / "backbone.safetensors").stat().st_size < ran.disk_bytes
    assert ran.loop["rounds"] == 40 * (120 // 32)
    assert ran.report["left_out"]["seconds"] > 0
    assert ran.whole_seconds == ran.seconds + ran.report["left_out"]["seconds"]
    assert ran.host_bytes > 2 * 2**28, "two processes, each with PyTorch"


def test_a_plan_that_is_terminated_leaves_nothing(prepared, tmp_path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.plan"],
        cwd=prepared,
        env={**os.environ, "CL_PROCESSES": "1", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(tmp_path, "cl-plan-*/models/start.safetensors", process)  # a rehearsal follows
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.glob("cl-plan-*"))


def ran(seconds: float, left_out: float, **report: object) -> Ran:
    loops = [{"rounds": 100, "seconds": 0.5}]
    parts = {"left_out": {"seconds": left_out}, "used": {}, "gpu_bytes": None, "loops": loops}
    return Ran(seconds, 2 * 10**9, 3 * 10**6, {**parts, **report})


def test_the_table_adds_up_what_was_measured() -> None:
    text = plan.table(
        {
            "pretrain": ran(600, 3000),
            "evaluate@knn": ran(360, 0, gpu_bytes=10**10),
            "analyze@npc": "it failed",
        }
    )
    cells = [[cell for cell in line.split("  ") if cell] for line in text.splitlines()]
    assert [[cell.strip() for cell in row] for row in cells[1:]] == [
        ["pretrain", "1", "2 GB", "-", "3 MB"],
        ["evaluate@knn", "0.1", "2 GB", "10 GB", "3 MB"],
        ["analyze@npc", "not measured"],
        ["total", "1.1", "2 GB", "10 GB", "6 MB"],
        ["analyze@npc: it failed"],
    ]


def test_slow_data_workers_hold_up_the_steps(params) -> None:
    """100 steps of 0.5 s on 32 images each: at 32 images/s, each waits for another 0.5 s."""
    assert params.optim.batch_size == 32
    assert forecast.waiting(params, ran(0, 0), 32) == pytest.approx(50)
    assert forecast.waiting(params, ran(0, 0), 1000) == 0
    assert "consumes up to 64 images/s" in forecast.bottleneck(params, ran(0, 0), 32, workers=True)
    assert "32 images/s: the data workers limit" in forecast.bottleneck(params, ran(0, 0), 32, workers=True)
    assert "the training step limits" in forecast.bottleneck(params, ran(0, 0), 1000, workers=True)


@pytest.mark.slow
def test_a_plan_without_data_workers_says_so(prepared, params, monkeypatch) -> None:
    monkeypatch.chdir(prepared)
    with copy_of_project() as place:
        drawing = place.with_optim(cropping="device").rehearse("draw")
        assert place.with_optim(cropping="workers").rehearse("draw").report["workers"]
    assert not drawing.report["workers"]
    said = forecast.bottleneck(params, ran(0, 0), 1000, workers=False)
    assert "There are no data workers: the process that trains draws boxes and colours" in said
    assert "this alone would allow 1000 images/s: the training step limits the speed." in said
    assert "32 images/s: that limits the speed." in forecast.bottleneck(params, ran(0, 0), 32, workers=False)


@pytest.mark.parametrize(
    ("capacity", "multiple", "images", "expected"),
    [(1000, 1, 10_000, 300), (1000, 32, 10_000, 288), (1000, 1, 250, 250), (99, 1, 10_000, 0)],
)
def test_the_largest_batch_is_on_the_line_through_two_points(capacity, multiple, images, expected) -> None:
    """Memory is 100 + 3 per image."""
    assert forecast.fit({64: 292, 128: 484}, capacity, multiple, images) == expected


def test_batches_are_multiples_of_what_shares_them(params) -> None:
    assert forecast.granularity(params.model_copy(update={"bn_group": "global"}), 3) == 3
    assert forecast.granularity(params.model_copy(update={"bn_group": 16}), 3) == 48
    in_parts = params.optim.model_copy(update={"microbatches": 2})
    changed = params.model_copy(update={"bn_group": 16, "optim": in_parts})
    assert forecast.granularity(changed, 2) == 64


def test_another_machine() -> None:
    """10 TFLOP at 30 % of 100 TFLOP/s take a third of a second, 500 images at 1000 images/s half a second."""
    assert forecast.hours_elsewhere(7200, 500, 1e13, tflops=100, rate=1000) == (pytest.approx(1), "data")
    assert forecast.hours_elsewhere(10800, 500, 1e13, tflops=100, rate=1e9) == (pytest.approx(1), "the GPU")


def test_wrong_options_are_refused(prepared) -> None:
    answer = planned(prepared, "evaluate@knm")
    assert answer.code == 1
    assert answer.stderr.startswith("Error: params.yaml has no stage evaluate@knm; choose from pretrain, ")
    answer = planned(prepared, "--images-per-second", "5")
    assert "requires --gpu-tflops" in answer.stderr
    answer = planned(prepared, "evaluate", "--gpu-tflops", "5")
    assert "add `pretrain`" in answer.stderr
