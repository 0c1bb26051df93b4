"""The stage in two processes: kills, signals, launchers, and code that changes meanwhile."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.parameters import parameters
from cl import config
from cl.data.order import Plan
from cl.objective.batch import Batch
from cl.runtime import files, machine
from cl.runtime.machine import Machine
from cl.runtime.tensor_files import save_tensors
from cl.training import optim, start
from pipeline import pretrain as stage
from pipeline.composition.compose import write
from pipeline.support import pretraining, runs
from pipeline.support.pretraining import build
from tests.support.stages import Stage, answers
from tests.support.training import assert_same_bits, models, newest_step

SETTINGS = ["method=moco_v2", "bn_group=16", "optim.batch_size=32", "optim.epochs=3", "views.random.size=16"]
SETTINGS += ["optim.monitor.bank=60", "optim.monitor.queries=20"]  # 9 steps
SETTINGS += ["evaluation=[]", "transfer=[]", "baseline=[]", "analysis=[npc]", "analyses.npc.batch_sizes=[32]"]


# A logger that is only a file: its lines begin with the process, and say what it was given.
RECORDER = """
import json, os


class Logger:
    def __init__(self, name, folder, parameters):
        folder.mkdir(parents=True, exist_ok=True)
        self.where = str(folder / "log")
        self.write("begin", name[: -len("-20260101-000000")], parameters["optim"]["epochs"])

    def log(self, title, row):
        self.write(title, row["epoch"], row["step"])

    def close(self, *, failed):
        self.write("close", failed)

    def write(self, *values):
        with open(self.where, "a") as file:
            file.write(json.dumps([os.environ.get("RANK", "0"), *values]) + "\\n")
"""


@pytest.fixture(scope="module")
def prepared(project_with_shards) -> Path:
    """A copy of the project with parameters for a short pretraining with MoCo."""
    write(project_with_shards / "params.yaml", SETTINGS)
    start.save(start.Start(), project_with_shards / "models" / "start.safetensors")
    (project_with_shards / "cl/console/loggers/recorder.py").write_text(RECORDER)
    return project_with_shards


def pretrain(folder: Path, scratch: Path, **variables: str) -> subprocess.Popen:
    """The stage in two processes, or as the variables say."""
    usual = {"CL_SCRATCH": str(scratch), "CL_CHECKPOINT_SECONDS": "0", "CL_PROCESSES": "2"}
    usual |= {"CL_LOG": "recorder"}
    command = [sys.executable, "-m", "pipeline.pretrain"]
    return subprocess.Popen(
        command, cwd=folder, env={**os.environ, **usual, **variables}, stderr=subprocess.PIPE, text=True
    )


def wait_for(scratch: Path, step: int, process: subprocess.Popen) -> None:
    while newest_step(scratch) < step and process.poll() is None:
        time.sleep(0.01)


@pytest.fixture(scope="module")
def finished(prepared, tmp_path_factory) -> dict[str, dict[str, torch.Tensor]]:
    """The models of two undisturbed processes."""
    undisturbed = pretrain(prepared, tmp_path_factory.mktemp("one"))
    _, output = undisturbed.communicate()
    assert undisturbed.returncode == 0, output
    return models(prepared)


@pytest.mark.slow
def test_two_processes_stopped_by_sigterm_continue(prepared, finished, tmp_path) -> None:
    (prepared / "models/backbone.safetensors").unlink()
    process = pretrain(prepared, tmp_path)
    wait_for(tmp_path, 4, process)
    process.send_signal(signal.SIGTERM)
    _, output = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, output
    assert output.count("stopped by SIGTERM after step") == 1
    assert "run the same command again to continue from there" in output
    assert not (prepared / "models/backbone.safetensors").exists()
    log = tmp_path / "logs/recorder/log"
    assert log.read_text().splitlines()[-1] == '["0", "close", true]', "stopped"
    log.unlink()
    (kept,) = tmp_path.glob("*/epochs.csv")
    before = kept.read_text()
    with (prepared / "cl/training/optim.py").open("a") as file:
        file.write("# edited\n")
    process = pretrain(prepared, tmp_path)
    _, output = process.communicate()
    assert process.returncode == 1, output
    assert output.count("set CL_CODE_CHANGED=continue to continue with the new code") == 1
    log.unlink(missing_ok=True)
    process = pretrain(prepared, tmp_path, CL_CODE_CHANGED="continue")
    _, output = process.communicate()
    assert process.returncode == 0, output
    provenance = json.loads((prepared / "results/pretrain.provenance.json").read_text())
    assert provenance["code_changed_during_run"] == ["cl/training/optim.py"]
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    epochs = [["0", "pretrain", epoch, 3 * epoch] for epoch in (1, 2, 3)]
    assert logged == [["0", "begin", "pretrain", 3], *epochs, ["0", "close", False]]
    table = (prepared / "results/pretrain/epochs.csv").read_text()
    assert table.startswith(before)
    assert len(table.splitlines()) == 1 + 3
    assert [path.name for path in tmp_path.iterdir()] == ["logs"], "checkpoints are left"
    assert_same_bits(models(prepared), finished)


def test_a_second_run_on_the_same_checkpoints_is_refused(prepared, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(prepared)
    with runs.begin("pretrain") as run:
        folder = tmp_path / run.folder.name
    before = {path: path.stat().st_mtime_ns for path in (prepared / "results").rglob("*")}
    with files.exclusive(folder, folder):
        (second,) = answers(prepared, [Stage(("pretrain",), {"CL_SCRATCH": str(tmp_path)})])
        assert second.code == 1
        assert f"Error: another process is writing into {folder}" in second.stderr
        assert "Traceback" not in second.stderr
        assert [path.name for path in folder.iterdir()] == ["lock"]
    assert {path: path.stat().st_mtime_ns for path in (prepared / "results").rglob("*")} == before


def test_an_old_model_and_impossible_launches_are_refused_in_one_line(prepared, here) -> None:
    tensors = build(config.load(prepared / "params.yaml"), here, 120).method.state_dict()
    model = prepared / "models" / "method.safetensors"
    (prepared / "results/pretrain").mkdir(parents=True, exist_ok=True)
    save_tensors({name: x for name, x in tensors.items() if name != "queue.groups"}, model)
    backbone = model.with_name("backbone.safetensors")
    backbone.touch()
    mistakes = {
        "models/method.safetensors does not match the model in queue.groups: ": Stage(("analyze", "npc")),
        "CL_PROCESSES=two: give a number": Stage(("pretrain",), {"CL_PROCESSES": "two"}),
        "CL_PROCESSES=2 with CL_LAUNCH=torchrun: choose one": Stage(
            ("pretrain",), {"CL_PROCESSES": "2", "CL_LAUNCH": "torchrun"}
        ),
        "CL_LAUNCH=srun python sets no RANK and WORLD_SIZE": Stage(
            ("pretrain",), {"CL_PROCESSES": "", "CL_LAUNCH": "srun python", "CL_LAUNCHED": "1"}
        ),
    }
    for sentence, answer in zip(mistakes, answers(prepared, list(mistakes.values())), strict=True):
        assert answer.code == 1
        assert answer.stderr.startswith(f"Error: {sentence}"), answer.stderr
    model.unlink()
    backbone.unlink()


@pytest.mark.slow
def test_torchrun_is_stopped_by_a_file_and_continues(prepared, finished, tmp_path) -> None:
    """The way docker/entrypoint.sh stops it, whatever launchers are in between."""
    stop = tmp_path / "stop"
    launch = 'bash -c \'trap "" TERM; exec torchrun --signals-to-handle=SIGINT --nproc-per-node=2 "$@"\' bash'
    variables = {"CL_LAUNCH": launch, "CL_STOP": str(stop), "CL_PROCESSES": ""}
    process = pretrain(prepared, tmp_path / "scratch", **variables)
    wait_for(tmp_path / "scratch", 3, process)
    stop.touch()
    _, output = process.communicate()
    assert process.returncode != 0
    assert output.count("stopped by SIGTERM after step") == 1
    stop.unlink()
    process = pretrain(prepared, tmp_path / "scratch", **variables)
    _, output = process.communicate()
    assert process.returncode == 0, output
    assert "continuing after step" in output
    assert_same_bits(models(prepared), finished)


@pytest.mark.parametrize(
    ("device", "size", "images", "cut", "compiler", "compiled"),
    [
        ("cuda", 224, 10**6, "whole", "python", True),
        ("cpu", 224, 10**6, "whole", "python", False),
        ("cuda", 64, 10**6, "whole", "python", False),
        ("cuda", 224, 10**5, "whole", "python", False),
        ("cuda", 224, 10**6, "drawn patches.stage=stage1 method=simsiam", "python", False),
        ("cuda", 224, 10**6, "whole", "no-such-compiler", False),
    ],
)
def test_encoders_are_compiled_where_it_pays(
    device, size, images, cut, compiler, compiled, monkeypatch
) -> None:
    """The line at the start says so, and names device and precision."""
    monkeypatch.setenv("CXX", compiler)
    params = parameters(f"views.random.size={size}", "optim.epochs=1", *f"patches={cut}".split())
    gpu = Machine(torch.device(device), 0, "bf16")
    decided = pretraining.decide_compile(params, gpu, images)
    assert decided.optim.compile is compiled
    said = stage._settings(decided, SimpleNamespace(plan=Plan(images, 128, seed=0)), gpu)
    assert said.endswith(f"on 1 x {device} in bf16" + ", compiled" * compiled)
    chosen = parameters("optim.compile=false")
    assert pretraining.decide_compile(chosen, gpu, images) is chosen


def test_a_gpu_that_is_not_used_is_mentioned(params, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(machine, "AMD_DRIVER", tmp_path)
    said: list[str] = []
    pretraining.warn(params, SimpleNamespace(say=said.append))
    assert [sentence for sentence in said if "GPUs of AMD and Apple are not used" in sentence]


def test_a_missing_compiler_is_named(params, here, monkeypatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    settings = params.optim.model_copy(update={"compile": True})
    with pytest.raises(
        ValueError, match="needs a C\\+\\+ compiler, and no-such-compiler was not found; install"
    ):
        build(params.model_copy(update={"optim": settings}), here, 32)


def test_each_step_begins_with_new_graphs(params, here, monkeypatch) -> None:
    asked, begun = [], []
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr(pretraining, "compile_forward", lambda network, graphs: asked.append(graphs))
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(len(begun)))
    settings = params.optim.model_copy(update={"compile": "graphs"})
    task = build(params.model_copy(update={"optim": settings}), here, 32)
    for step in range(2):
        task.begin_step(step, 0.0)
    assert (asked, begun) == ([True], [0, 1])
    monkeypatch.setattr(pretraining, "ranks", lambda: 2)
    with pytest.raises(ValueError, match="for one process, found 2"):
        pretraining.compile_encoders(task.method, graphs=True)


@pytest.mark.slow
def test_a_compiled_encoder_takes_the_same_steps(params, here) -> None:
    """torch.compile changes the weights only by rounding, and does not change tensor names."""
    views = [torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    losses, names = {}, {}
    for compiled in (False, True):
        settings = params.optim.model_copy(update={"compile": compiled})
        task = build(params.model_copy(update={"optim": settings}), here, 32).train()
        optimizer = optim.build(settings, [optim.Part(task)])
        losses[compiled] = []
        for step in range(2):  # later ones diverge, as with another number of threads
            task.begin_step(step, 0.0)
            loss = task(Batch(views, torch.zeros(32), torch.arange(32), None))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            task.after_step(0.1)
            losses[compiled].append(float(loss.detach()))
        names[compiled] = list(task.state_dict())
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)
    assert losses[True] != losses[False], "nothing was compiled"
    assert names[True] == names[False]


def test_the_bands_of_init_are_compared_with_those_of_the_images(params) -> None:
    bands = SimpleNamespace(names=("red", "infrared"))
    images, weights = SimpleNamespace(manifest=SimpleNamespace(bands=bands)), ["infrared", "red"]
    here = Machine(torch.device("cpu"), 0, "fp32")
    with pytest.raises(ValueError, match="init takes the bands infrared, red, the images have red, infrared"):
        pretraining.prepare(params, here, images, start.Start(origin={"bands": weights}))
