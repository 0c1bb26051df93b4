"""The loop: exact resume, measuring, clipping, and losses that are not finite."""

import itertools
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.gpu.roofline.fake_gpu import GPU, FakeGpu, pretended_ranks
from cl.console.stop import StoppedError, signals
from cl.data.order import Plan
from cl.runtime.machine import Machine
from cl.training import checkpoints, optim, tasks
from cl.training.checkpoints import Checkpoints
from cl.training.loop import MetricBuffer, replicated
from tests.support.devices import on_all_devices
from tests.support.files import read_csv
from tests.support.tiny import TinyBackbone
from tests.support.training import newest_step, train_tiny

LARS = optim.Lars(eta=0.001, eps=0.0, adapt_1d=False, norm="sum", order="ratio")
OPTIMIZERS: list[dict] = [
    {},
    {"kind": "lars", "lars": LARS},
    {"kind": "adamw", "momentum": 0.0, "betas": (0.9, 0.99)},
]


class PowerCutError(Exception):
    pass


@contextmanager
def power_cut_after(at: int) -> Iterator[None]:
    """End the run once it has saved the checkpoint of step `at`."""
    saved = Checkpoints.save

    def cut(self, step, *arguments):  # type: ignore[no-untyped-def]
        saved(self, step, *arguments)
        self.finish()  # so that the next step is saved too
        if step == at:
            raise PowerCutError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(PowerCutError):
        patch.setattr(Checkpoints, "save", cut)
        yield


@pytest.fixture
def train(shard_folder, params, here, quiet, tmp_path) -> Callable[..., tuple[tasks.SupervisedTask, list]]:
    """Trains the tiny network; if `saving`, with a checkpoint after every step."""

    def run(*, saving: bool = False, **arguments: Any) -> tuple[tasks.SupervisedTask, list]:
        if saving:
            arguments["checkpoints"] = Checkpoints(tmp_path, 0)
        return train_tiny(shard_folder, params, here, quiet, **arguments)

    return run


@pytest.mark.parametrize(("at", "settings"), [(1, {}), (7, {}), *((4, settings) for settings in OPTIMIZERS)])
def test_a_run_cut_anywhere_continues_to_the_same_weights(train, tmp_path, at, settings) -> None:
    """Also in mid-epoch: 3 steps per epoch, a checkpoint after every step; the rows are the same too."""
    whole, rows = train(settings=settings)
    with power_cut_after(at):
        train(saving=True, settings=settings)
    resumed, again = train(saving=True, settings=settings)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    for a, b in zip(rows, again, strict=True):
        assert [a[key] for key in ("epoch", "step", "loss", "lr")] == [
            b[key] for key in ("epoch", "step", "loss", "lr")
        ]


def test_a_stopped_run_has_saved(train, tmp_path, monkeypatch) -> None:
    """However long the write takes; only then may the process end."""
    real = checkpoints.save_tensors

    def slowly(*arguments):  # type: ignore[no-untyped-def]
        time.sleep(0.5)
        real(*arguments)

    monkeypatch.setattr(checkpoints, "save_tensors", slowly)
    with pytest.raises(StoppedError, match="after step 4"):
        train(
            checkpoints=Checkpoints(tmp_path, 60),
            each_epoch=lambda epoch: os.kill(os.getpid(), signal.SIGTERM) or {},
        )
    assert newest_step(tmp_path) == 4


def test_the_table_of_epochs_grows_and_has_each_epoch_once_if_the_run_is_cut(train, tmp_path) -> None:
    """The run is cut after two epochs, and continues from a checkpoint within the second one."""
    seen: list[list[str]] = []

    def epochs() -> list[str]:
        path = tmp_path / "epochs.csv"
        return [row["epoch"] for row in read_csv(path)] if path.exists() else []

    def look(epoch: int) -> dict[str, float]:
        seen.append(epochs())
        return {}

    with power_cut_after(6):
        train(saving=True, each_epoch=look)
    assert [*seen, epochs()] == [[], ["1"], ["1", "2"]]
    seen.clear()
    (tmp_path / "step-000000006.safetensors").unlink()
    train(saving=True, each_epoch=look)
    assert [*seen, epochs()] == [["1"], ["1", "2"], ["1", "2", "3"], ["1", "2", "3", "4"]]
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".safetensors"}


@pytest.mark.parametrize(("at", "then"), [(3, [1, 2, 3]), (4, [2, 3])])
def test_an_epoch_begins_once_even_if_the_run_is_cut(train, tmp_path, monkeypatch, at, then) -> None:
    """Three steps per epoch: a run cut after step 3 resumes with epoch 1, one cut within it with epoch 2."""
    calls: list[str] = []
    monkeypatch.setattr(
        tasks.SupervisedTask, "begin_epoch", lambda self, epoch: calls.append(f"epoch {epoch}")
    )
    monkeypatch.setattr(
        tasks.SupervisedTask, "begin_step", lambda self, step, progress: calls.append(f"step {step}")
    )
    with power_cut_after(at):
        train(saving=True)
    assert calls[:2] == ["step 0", "epoch 0"], "random numbers of an epoch come from its first step"
    calls.clear()
    train(saving=True)
    assert [call for call in calls if call.startswith("epoch")] == [f"epoch {epoch}" for epoch in then]


def test_a_task_hears_how_much_is_done(train, monkeypatch) -> None:
    heard: list[float] = []
    monkeypatch.setattr(tasks.SupervisedTask, "after_step", lambda self, progress: heard.append(progress))
    train()
    assert heard == pytest.approx([(step + 1) / 12 for step in range(12)])


def test_measuring_after_an_epoch_changes_nothing(train) -> None:
    """It happens in eval mode, and training continues in train mode."""
    plain, _ = train()
    measured, rows = train(each_epoch=lambda epoch: {"seen": float(epoch)})
    assert [row["seen"] for row in rows] == [1.0, 2.0, 3.0, 4.0]
    for name, value in plain.state_dict().items():
        assert torch.equal(measured.state_dict()[name], value), name


def test_clipping_bounds_the_gradient_of_all_parameters_together(train, monkeypatch) -> None:
    """With a small bound, plain gradient descent moves by exactly the rate times the bound."""
    moved = []

    def follow(self, progress: float) -> None:  # type: ignore[no-untyped-def]
        moved.append(torch.cat([p.detach().flatten().clone() for p in self.parameters()]))

    monkeypatch.setattr(tasks.SupervisedTask, "after_step", follow)
    settings = {
        "momentum": 0.0,
        "weight_decay": 0.0,
        "schedule": "constant",
        "warmup_epochs": 0,
        "clip": 1e-3,
    }
    _, rows = train(settings=settings)
    lengths = [float((b - a).norm()) for a, b in itertools.pairwise(moved)]
    assert lengths == pytest.approx([rows[0]["lr"] * 1e-3] * len(lengths), rel=1e-3)


def test_a_loss_that_is_not_finite_stops_the_run(train) -> None:
    message = r"the loss is nan at step \d+ \(loss nan, learning rate .*Lower"
    with pytest.raises(FloatingPointError, match=message):
        train(settings={"epochs": 15, "base_lr": 1e38, "warmup_epochs": 0})


def test_a_gradient_that_is_not_finite_is_named_with_its_step() -> None:
    """Losses are read some steps later: the message names the first bad step; earlier ones are recorded."""
    metrics = MetricBuffer({}, "Lower optim.base_lr", Plan(8, 2, seed=0))
    for step, norm in enumerate([1.0, 2.0, math.inf, math.nan]):
        metrics.add(step, 0.1 * step, {"loss": torch.tensor(4.0)}, torch.tensor(norm))
    with pytest.raises(FloatingPointError) as error:
        metrics.flush()
    assert str(error.value).startswith(
        "the norm of the gradient is inf at step 2 (loss 4, learning rate 0.2); the weights"
    )
    assert metrics.norms == [1.0, 2.0]


class ArrivedEvent:
    """For a simulated GPU, on which no event can be recorded."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...


def test_a_gpu_is_not_waited_for_before_the_end_of_an_epoch(monkeypatch) -> None:
    """The simulated GPU refuses waits. A step is known one reading later."""
    monkeypatch.setattr(torch.cuda, "Event", ArrivedEvent)
    metrics = MetricBuffer({}, "", Plan(8, 2, seed=0))
    with FakeGpu() as gpu:
        value, norm = torch.ones((), device=GPU), torch.ones((), device=GPU)
        for reading in range(3):
            for _ in range(2):
                metrics.add(2 * reading, 0.1, {"loss": value}, norm)
            metrics.flush(wait=False)
            assert len(metrics.norms) == 2 * reading
        metrics.flush()
    assert gpu.waits == 0
    assert len(metrics.norms) == 6


@pytest.mark.parametrize("every", [2, 20])
def test_how_often_losses_are_read_changes_no_row(shard_folder, params, here, quiet, every) -> None:
    def of_steps(machine: Machine) -> list[list[float]]:
        _, rows = train_tiny(shard_folder, params, machine, quiet)
        return [[row[key] for key in ("epoch", "step", "loss", "gradient_norm", "lr")] for row in rows]

    assert of_steps(replace(here, read_every=every)) == of_steps(here)


def test_of_several_classifiers_the_smallest_loss_is_shown() -> None:
    """One that diverges would hide the others in the mean."""
    metrics = MetricBuffer({}, "", Plan(8, 2, seed=0))
    assert math.isnan(metrics.last_loss())
    losses = {"loss": torch.tensor(500.5), "head_0_loss": torch.tensor(1.0), "head_1_loss": torch.tensor(1e3)}
    metrics.add(0, 0.1, losses, torch.tensor(1.0))
    metrics.flush()
    assert metrics.last_loss() == 1


def test_only_a_second_interrupt_ends_at_once() -> None:
    """SIGTERM may come from the scheduler and from the launcher too."""
    with signals() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM] * 2
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@on_all_devices
def test_what_a_network_draws_depends_on_the_seed_and_the_step(here) -> None:
    def drawn(seed: int, step: int) -> torch.Tensor:
        task = tasks.SupervisedTask(TinyBackbone(), tasks.classifier(8, 2), here, seed=seed)
        task.begin_step(step, 0.0)
        return torch.rand(3, device=here.device)

    assert torch.equal(drawn(1, 5), drawn(1, 5))
    assert not torch.equal(drawn(1, 5), drawn(2, 5))
    assert not torch.equal(drawn(1, 5), drawn(1, 6))


def test_other_exchanges_do_not_queue_behind_gradients() -> None:
    """All trainings of a run share one more group; a later run has its own."""
    for ranks in (2, 4):
        with pretended_ranks(ranks):
            first, second = (replicated(nn.Linear(2, 2)).process_group for _ in range(2))
            assert first is second
            assert first is not dist.group.WORLD
            assert first.size() == ranks
