"""Every logger on disk, with its library where that is installed; and what all of them have in common."""

import importlib
import json
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from cl.console.loggers import Loggers
from cl.runtime.registry import kinds

PARAMETERS = {"seed": 3, "optim": {"kind": "sgd", "betas": None, "milestones": [0.5, 0.8]}}
ROWS = [{"epoch": epoch, "step": 40 * epoch, "loss": 5 / epoch, "knn_top1": 30.5} for epoch in (1, 2)]


@pytest.fixture
def offline(monkeypatch, tmp_path) -> None:
    """No server, and an empty folder."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


@pytest.mark.parametrize("failed", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", kinds("console.loggers"))
def test_a_logger_stores_parameters_and_every_row_once(name, failed, tmp_path, offline) -> None:
    """Also of a second training with the same title, whose steps begin again."""
    pytest.importorskip(name, reason=f"{name} is not installed: pip install {name}")
    said: list[str] = []
    try:
        with Loggers([name], tmp_path / "logs", lambda: PARAMETERS, "lime-owl") as loggers:
            for _ in range(2):
                log = loggers.begin("linear", said.append)
                for row in ROWS:
                    log(row)
            if failed:
                raise InterruptedError
    except InterruptedError:
        assert failed
    assert len(said) == 1, said
    assert said[0].startswith(f"{name} logs to ")
    assert not list(Path.cwd().iterdir())
    if name == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray

        (run,) = (tmp_path / "logs" / name).iterdir()
        events = EventAccumulator(str(run)).Reload()
        (text,) = events.Tensors("parameters/text_summary")
        assert json.loads(make_ndarray(text.tensor_proto)[0].decode().strip("`\n")) == PARAMETERS
        columns = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        assert columns == {
            f"{title}/{column}": [(row["step"], pytest.approx(row[column])) for row in ROWS]
            for title in ("linear", "linear-2")
            for column in ROWS[0]
        }


@pytest.mark.parametrize("name", kinds("console.loggers"))
def test_a_missing_library_is_named_with_the_command_that_installs_it(name, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    for module in [
        module for module in sys.modules if module.startswith(("cl.console.loggers.", "torch.utils.tensor"))
    ]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ValueError, match=rf"^CL_LOG={name} needs .* \(.*\): run `pip install {name}`$"):
        Loggers([name], tmp_path, dict)


class Recorder:
    """A logger that may fail."""

    where = "memory"
    fails: ClassVar[set[str]] = set()
    seen: ClassVar[list[str]] = []

    def __init__(self, name: str, folder: Path, parameters: dict) -> None:
        self._do(f"begin {name.rsplit('-', 2)[0]}")

    def log(self, title: str, row: dict[str, float]) -> None:
        self._do(f"log {title} {row['epoch']}")

    def close(self, *, failed: bool) -> None:
        self._do(f"close {failed}")

    def _do(self, action: str) -> None:
        self.seen.append(action)
        if action in self.fails:
            raise OSError("the server\n  is gone")


@pytest.fixture
def recorder(monkeypatch) -> type[Recorder]:
    """In place of two loggers, of which the first has Recorder's class."""

    class Sound(Recorder):
        fails: ClassVar[set[str]] = set()
        seen: ClassVar[list[str]] = []

    classes = {"tensorboard": Recorder, "wandb": Sound}
    monkeypatch.setattr(importlib.import_module("cl.console.loggers"), "_class_of", classes.__getitem__)
    Recorder.seen, Recorder.fails = [], set()
    return Recorder


def test_a_logger_that_fails_does_not_stop_the_training(recorder, tmp_path) -> None:
    said: list[str] = []
    recorder.fails = {"log pretrain 1"}
    with Loggers(["tensorboard", "wandb"], tmp_path, dict) as loggers:
        sound = loggers._classes["wandb"]
        log = loggers.begin("pretrain", said.append)
        for row in ROWS:
            log(row)
    assert said[2:] == ["tensorboard failed and stops logging: the server is gone"]
    assert recorder.seen == ["begin pretrain", "log pretrain 1"]
    assert sound.seen == ["begin pretrain", "log pretrain 1", "log pretrain 2", "close False"]


def test_a_logger_that_cannot_begin_is_an_error_before_the_training(recorder, tmp_path) -> None:
    recorder.fails = {"begin pretrain"}
    with (
        pytest.raises(ValueError, match="^CL_LOG=tensorboard cannot begin a run: the server is gone$"),
        Loggers(["tensorboard"], tmp_path, dict) as loggers,
    ):
        loggers.begin("pretrain", print)
    assert recorder.seen == ["begin pretrain"]


def test_passwords_in_addresses_are_not_printed(recorder, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(recorder, "where", "postgresql://cl:secret@host/runs")
    said: list[str] = []
    with Loggers(["tensorboard"], tmp_path, dict) as loggers:
        loggers.begin("pretrain", said.append)
    assert said == ["tensorboard logs to postgresql://host/runs"]


def test_without_a_training_nothing_begins(recorder, tmp_path) -> None:
    with Loggers(["tensorboard"], tmp_path, dict):
        pass
    assert recorder.seen == []
