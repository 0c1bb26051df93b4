"""The loop: exact resume after any end, checkpoints of one experiment only, and a loss that is not finite."""

import copy
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cl.console.stop import signals
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.runtime.distributed import rank, ranks
from cl.runtime.tensor_files import load_tensors
from cl.training import checkpoints as checkpoint
from cl.training import optim, tasks
from cl.training.checkpoints import Checkpoints
from cl.training.loop import Ledger, train
from pipeline import provenance
from pipeline.pretrain import build
from tests.support.tiny import TinyBackbone

LARS = optim.Lars(eta=0.001, eps=0.0, adapt_1d=False, norm="sum", order="ratio")
OPTIMIZERS: list[dict] = [
    {},
    {"kind": "lars", "lars": LARS},
    {"kind": "adamw", "momentum": 0.0, "betas": (0.9, 0.99)},
]


def run(folder, params, here, quiet, checkpoints=None, settings=None, **arguments):  # type: ignore[no-untyped-def]
    """Train the tiny supervised network for four epochs; its task and rows."""
    torch.manual_seed(0)
    task = tasks.Classification(TinyBackbone(), tasks.classifier(8, 20), here)
    config = params.baselines["supervised"].training.optim.model_copy(
        update={"epochs": 4, "batch_size": 40, **(settings or {})}
    )
    reader = Reader(folder, "train")
    plan = Plan(len(reader), 40, 0, rank(), ranks())
    data = TrainSet(reader, list(params.baselines["supervised"].training.views.values()), plan)
    optimizer = optim.build(config, [optim.Part(task)])
    rows = train(
        task,
        data,
        config,
        optimizer,
        source=params.dataset,
        progress=quiet,
        checkpoints=checkpoints,
        **arguments,
    )
    return task, rows


SMALL = ["bn_group=16", "optim.batch_size=32"]


class PowerCutError(Exception):
    pass


@pytest.mark.parametrize(("at", "settings"), [(1, {}), (7, {}), *((4, settings) for settings in OPTIMIZERS)])
def test_a_run_cut_anywhere_continues_to_the_same_weights(
    shard_folder, params, here, quiet, tmp_path, monkeypatch, at, settings
) -> None:
    """Also in mid-epoch: 3 steps an epoch, a checkpoint after every step; the rows come out the same too."""
    whole, rows = run(shard_folder, params, here, quiet, settings=settings)
    saved = checkpoint.Checkpoints.save

    def cut(self, step, *arguments):  # type: ignore[no-untyped-def]
        saved(self, step, *arguments)
        if step == at:
            raise PowerCutError

    monkeypatch.setattr(checkpoint.Checkpoints, "save", cut)
    with pytest.raises(PowerCutError):
        run(shard_folder, params, here, quiet, Checkpoints(tmp_path, 0), settings)
    monkeypatch.setattr(checkpoint.Checkpoints, "save", saved)
    resumed, again = run(shard_folder, params, here, quiet, Checkpoints(tmp_path, 0), settings)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    for a, b in zip(rows, again, strict=True):
        assert [a[key] for key in ("epoch", "step", "loss", "lr")] == [
            b[key] for key in ("epoch", "step", "loss", "lr")
        ]


def test_measuring_after_an_epoch_changes_nothing(shard_folder, params, here, quiet) -> None:
    """It happens in eval mode, and training goes on in its own."""
    plain, _ = run(shard_folder, params, here, quiet)
    measured, rows = run(shard_folder, params, here, quiet, each_epoch=lambda epoch: {"seen": float(epoch)})
    assert [row["seen"] for row in rows] == [1.0, 2.0, 3.0, 4.0]
    for name, value in plain.state_dict().items():
        assert torch.equal(measured.state_dict()[name], value), name


def test_clipping_bounds_the_gradient_of_all_parameters_together(
    shard_folder, params, here, quiet, monkeypatch
) -> None:
    """Plain gradient descent moves no further than the rate times the bound, and moves that far where the bound is small."""
    moved = []

    def follow(self, progress: float) -> None:  # type: ignore[no-untyped-def]
        moved.append(torch.cat([p.detach().flatten().clone() for p in self.parameters()]))

    monkeypatch.setattr(tasks.Classification, "after_step", follow)
    settings = {
        "momentum": 0.0,
        "weight_decay": 0.0,
        "schedule": "constant",
        "warmup_epochs": 0,
        "clip": 1e-3,
    }
    _, rows = run(shard_folder, params, here, quiet, settings=settings)
    lengths = [float((b - a).norm()) for a, b in itertools.pairwise(moved)]
    assert lengths == pytest.approx([rows[0]["lr"] * 1e-3] * len(lengths), rel=1e-3)


def test_a_torn_checkpoint_gives_way_to_the_one_before(tmp_path) -> None:
    task = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(task.parameters(), 0.1, momentum=0.9)
    store = Checkpoints(tmp_path)
    states = {}
    for step in (1, 2, 3):
        task(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        store.save(step, task, optimizer, {"rows": [step]})
        states[step] = copy.deepcopy(task.state_dict())
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files] == ["step-000000002.safetensors", "step-000000003.safetensors"]
    os.truncate(files[1], files[1].stat().st_size - 10)
    other = torch.nn.Linear(3, 2)
    step, history = store.restore(other, torch.optim.SGD(other.parameters(), 0.1, momentum=0.9))
    assert (step, history) == (2, {"rows": [2]})
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, states[2][name])


def test_a_loss_that_is_not_finite_stops_the_run(shard_folder, params, here, quiet, tmp_path) -> None:
    torch.manual_seed(0)
    task = tasks.Classification(TinyBackbone(), tasks.classifier(8, 20), here)
    config = params.baselines["supervised"].training.optim.model_copy(
        update={"base_lr": 1e38, "batch_size": 40, "warmup_epochs": 0}
    )
    reader = Reader(shard_folder, "train")
    data = TrainSet(
        reader, list(params.baselines["supervised"].training.views.values()), Plan(len(reader), 40, 0)
    )
    with pytest.raises(
        FloatingPointError,
        match=r"the loss is nan at step \d+ \(loss nan, largest logit .*, learning rate .*Lower",
    ):
        train(
            task, data, config, optim.build(config, [optim.Part(task)]), source=params.dataset, progress=quiet
        )


def test_a_gradient_that_is_not_finite_is_named_with_its_step() -> None:
    """Losses are looked at some steps later: the first bad step is told, and those before it are on record."""
    ledger = Ledger([], [], "Lower optim.base_lr")
    for step, norm in enumerate([1.0, 2.0, math.inf, math.nan]):
        ledger.add(step, 0.1 * step, torch.tensor(4.0), torch.tensor(norm), torch.tensor(9.0))
    with pytest.raises(FloatingPointError) as error:
        ledger.flush()
    assert str(error.value).startswith(
        "the norm of the gradient is inf at step 2 (loss 4, largest logit 9, learning rate 0.2); the weights of the last"
    )
    assert ledger.norms == [1.0, 2.0]


def test_only_a_second_interrupt_ends_at_once() -> None:
    """SIGTERM may come from the scheduler and from the launcher too."""
    with signals() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM] * 2
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def prepared(project, tmp_path_factory, shard_folder) -> Path:
    """The clone with tiny shards in place and parameters for a short pretraining with MoCo."""
    import shutil

    from pipeline.compose import compose

    folder = tmp_path_factory.mktemp("pretrain") / "project"
    shutil.copytree(project, folder)
    shutil.copytree(shard_folder, folder / "data" / "shards")
    settings = [
        "method=moco_v2",
        "bn_group=16",
        "optim.batch_size=32",
        "optim.epochs=8",
        "optim.monitor.bank=60",
        "optim.monitor.queries=20",
    ]
    compose(folder / "params.yaml", settings)
    return folder


def pretrain(folder: Path, scratch: Path, **variables: str) -> subprocess.Popen:
    """The stage in two processes, or as the variables say."""
    usual = {"CL_SCRATCH": str(scratch), "CL_CHECKPOINT_SECONDS": "0", "CL_PROCESSES": "2"}
    command = [sys.executable, "-m", "pipeline.pretrain"]
    return subprocess.Popen(
        command, cwd=folder, env={**os.environ, **usual, **variables}, stderr=subprocess.PIPE, text=True
    )


def newest(scratch: Path) -> int:
    names = [name for _, _, files in os.walk(scratch) for name in files if name.startswith("step-")]
    return max((int(name.removeprefix("step-").removesuffix(".safetensors")) for name in names), default=0)


def wait_for(scratch: Path, step: int, process: subprocess.Popen) -> None:
    while newest(scratch) < step and process.poll() is None:
        time.sleep(0.01)


def ranks_of(launcher: subprocess.Popen) -> list[int]:
    """The processes that a launcher has started."""
    return [
        int(pid) for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    ]


@pytest.fixture(scope="module")
def finished(prepared, tmp_path_factory) -> list[dict]:
    """What two processes that nobody disturbs end with."""
    undisturbed = pretrain(prepared, tmp_path_factory.mktemp("one"))
    _, output = undisturbed.communicate()
    assert undisturbed.returncode == 0, output
    assert "on 2 x cpu in fp32" in output
    return [load_tensors(prepared / "models" / f"{name}.safetensors")[0] for name in ("backbone", "method")]


def test_two_processes_survive_kill_9_of_one_and_sigterm(prepared, finished, tmp_path) -> None:
    """The same bytes as from an undisturbed run; a dead process ends the other one, with the reason, within a minute."""
    models = [prepared / "models" / f"{name}.safetensors" for name in ("backbone", "method")]
    for path in models:
        path.unlink()
    process = pretrain(prepared, tmp_path)
    wait_for(tmp_path, 3, process)
    began = time.monotonic()
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    _, output = process.communicate()
    assert time.monotonic() - began < 60
    assert process.returncode == 128 + signal.SIGKILL, output
    assert "process 1 of 2 was ended by SIGKILL" in output
    process = pretrain(prepared, tmp_path)
    wait_for(tmp_path, 15, process)
    process.send_signal(signal.SIGTERM)
    _, output = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "continuing after step" in output
    assert output.count("stopped by SIGTERM after step") == 1
    assert "run the same command again to continue from there" in output
    assert not models[0].exists()
    process = pretrain(prepared, tmp_path)
    _, output = process.communicate()
    assert process.returncode == 0, output
    for path, tensors in zip(models, finished, strict=True):
        found = load_tensors(path)[0]
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"CL_PROCESSES": "two"}, "Error: CL_PROCESSES=two: give a number of processes, such as 2"),
        ({"CL_LAUNCH": "torchrun"}, "Error: CL_PROCESSES=2 with CL_LAUNCH=torchrun: choose one of the two"),
        (
            {"CL_LAUNCH": "srun python", "CL_LAUNCHED": "1", "CL_PROCESSES": ""},
            "Error: CL_LAUNCH=srun python started this process without RANK and WORLD_SIZE; choose a launcher that sets",
        ),
    ],
)
def test_ways_to_start_processes_that_do_not_work_are_refused(
    prepared, tmp_path, variables, sentence
) -> None:
    process = pretrain(prepared, tmp_path, **variables)
    _, output = process.communicate()
    assert process.returncode == 1
    assert sentence in output


@pytest.mark.slow
def test_torchrun_is_stopped_by_a_file_and_goes_on(prepared, finished, tmp_path) -> None:
    """As docker/entrypoint.sh stops it, whatever launchers are in between."""
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
    found = load_tensors(prepared / "models" / "method.safetensors")[0]
    assert all(torch.equal(found[name], tensor) for name, tensor in finished[1].items())


@pytest.mark.slow
def test_a_compiled_encoder_takes_the_same_steps(params, here) -> None:
    """Through torch.compile, to rounding; names of tensors stay as they are."""
    views = [torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    losses, names = {}, {}
    for compiled in (False, True):
        settings = params.optim.model_copy(update={"compile": compiled})
        task = build(params.model_copy(update={"optim": settings}), here).train()
        optimizer = optim.build(settings, [optim.Part(task)])
        losses[compiled] = []
        for step in range(2):  # later ones part, as those of another number of threads do
            task.begin_step(step, 0.0)
            loss = task(views, torch.zeros(0))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            task.after_step(0.1)
            losses[compiled].append(float(loss.detach()))
        names[compiled] = list(task.state_dict())
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)
    assert losses[True] != losses[False], "nothing was compiled"
    assert names[True] == names[False]


def test_another_experiment_has_other_checkpoints(prepared, monkeypatch) -> None:
    from pipeline.compose import compose

    monkeypatch.chdir(prepared)
    before = (prepared / "params.yaml").read_text()
    base = provenance.identity("pretrain")
    assert base == provenance.identity("pretrain")
    for change in ("loss=dclw", "seed=1", "optim.base_lr=0.1"):
        compose(prepared / "params.yaml", ["method=moco_v2", *SMALL, change])
        assert provenance.identity("pretrain") != base
    (prepared / "params.yaml").write_text(before.replace("memory: 512", "memory: 256"))
    assert provenance.identity("pretrain") == base, (
        "an evaluation's parameter has nothing to do with pretraining"
    )
    (prepared / "params.yaml").write_text(before)
    for file in ("cl/training/optim.py", "data/shards/manifest.json"):
        content = (prepared / file).read_text()
        (prepared / file).write_text(content + " ")
        assert provenance.identity("pretrain") != base, file
        (prepared / file).write_text(content)
    assert provenance.identity("pretrain") == base
