"""Checkpoints: damaged ones are reported and replaced by the one before, those of other models refused."""

import copy
import multiprocessing
import resource
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cl.training import checkpoints
from cl.training.checkpoints import Checkpoints
from tests.support.files import flip_bit
from tests.support.processes import until


def trained(steps: int, store: Checkpoints, width: int = 3) -> None:
    """Checkpoints of a layer whose weights are the number of the step."""
    layer = nn.Linear(width, width)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for step in range(1, steps + 1):
        with torch.no_grad():
            layer.weight.fill_(step)
        store.save(step, layer, optimizer, {"rows": [step]})
    store.finish()


def restored(store: Checkpoints, say: Callable[[str], None], width: int = 3) -> int:
    """The step of the checkpoint restored, after checking its history and weights."""
    layer = nn.Linear(width, width)
    before = layer.weight.detach().clone()
    step, history = store.restore(layer, torch.optim.SGD(layer.parameters(), 0.1), say)
    assert history == ({"rows": [step]} if step else {})
    assert torch.equal(layer.weight, torch.full_like(before, step) if step else before)
    return step


def flip_at(text: bytes) -> Callable[[Path], None]:
    return lambda path: flip_bit(path, 8 * path.read_bytes().index(text))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "tensors": lambda path: flip_bit(path, 8 * path.stat().st_size - 1),
    "length": lambda path: flip_bit(path, 0),
    "name": flip_at(b"weight"),
    "history": flip_at(b"rows"),
    "key": flip_at(b"history"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_used(tmp_path, damage) -> None:
    store, said = Checkpoints(tmp_path), []
    trained(3, store)
    assert restored(store, said.append) == 3
    assert said == []
    DAMAGE[damage](tmp_path / "step-000000003.safetensors")
    assert restored(store, said.append) == 2
    assert len(said) == 1
    assert "step-000000003.safetensors" in said[0]
    assert "continues from the previous checkpoint" in said[0]
    DAMAGE[damage](tmp_path / "step-000000002.safetensors")
    assert restored(store, said.append) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", [nn.Linear(3, 4), nn.Sequential(nn.Linear(3, 3)), nn.BatchNorm1d(3)])
def test_a_checkpoint_of_another_model_is_refused_in_one_line(tmp_path, other) -> None:
    """For example, one of an earlier version, whose queue did not have groups."""
    store = Checkpoints(tmp_path)
    trained(1, store)
    with pytest.raises(ValueError) as error:
        store.restore(other, torch.optim.SGD(other.parameters(), 0.1))
    message = str(error.value)
    assert message.startswith(f"{tmp_path / 'step-000000001.safetensors'} does not match the model in ")
    assert message.endswith(f": other code or parameters wrote it; remove {tmp_path} to start again")
    assert list(tmp_path.iterdir()), "it is the user who removes it"


@pytest.mark.parametrize(
    ("took", "seconds", "expected"), [(0.5, 60, 60), (5, 60, 250), (100, 60, 1800), (5, 600, 600)]
)
def test_saving_takes_two_percent_of_the_time(tmp_path, monkeypatch, took, seconds, expected) -> None:
    """Or more, if checkpoints would be 30 times as rare as asked for."""
    now = 0.0
    real = checkpoints.copied

    def copy_slowly(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal now
        now += took / 2  # a weight and a bias
        return real(tensor)

    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now)
    monkeypatch.setattr(checkpoints, "copied", copy_slowly)
    store = Checkpoints(tmp_path, seconds)
    trained(1, store)
    now += expected - 0.01
    assert not store.due()
    now += 0.01
    assert store.due()


def test_a_failed_write_is_an_error_soon_but_hides_no_other(tmp_path, monkeypatch) -> None:
    def fail(*args: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoints, "save_tensors", fail)
    layer = nn.Linear(3, 3)
    arguments = 1, layer, torch.optim.SGD(layer.parameters(), 0.1), dict[str, Any]()
    store = Checkpoints(tmp_path, seconds=60)
    store.save(*arguments)
    with pytest.raises(OSError, match="No space"):
        for _ in range(1000):
            assert not store.due()
            time.sleep(0.01)
    with pytest.raises(OSError, match="No space"), store:
        store.save(*arguments)
    with pytest.raises(FloatingPointError), store:
        store.save(*arguments)
        raise FloatingPointError


WIDTH = 2000  # 16 MB: writing it takes a while


def keep_saving(folder: Path) -> None:
    torch.set_num_threads(1)
    trained(10**6, Checkpoints(folder), WIDTH)


def kill_in_a_save(folder: Path) -> bool:
    """Kill a process that saves, once it has begun another checkpoint; whether a save was cut short."""
    saving = multiprocessing.get_context("fork").Process(target=keep_saving, args=(folder,))
    saving.start()
    until(lambda: list(folder.glob("*.safetensors")) and list(folder.glob("*.partial/*")), pause=0.001)
    saving.kill()
    saving.join()
    return bool(list(folder.glob("*.partial/*")))


def test_a_kill_in_the_middle_of_a_save_loses_only_that_save(tmp_path) -> None:
    assert any(kill_in_a_save(tmp_path) for _ in range(5))
    said: list[str] = []
    assert restored(Checkpoints(tmp_path), said.append, WIDTH) > 0
    assert said == []
    assert all(path.name.startswith("step-") and path.suffix == ".safetensors" for path in tmp_path.iterdir())


def test_a_full_disk_leaves_existing_checkpoints_intact(tmp_path) -> None:
    store = Checkpoints(tmp_path)
    trained(3, store)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            trained(4, store, width=1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert restored(store, print) == 3


def test_an_optimizers_state_is_on_its_parameters_device(tmp_path) -> None:
    """The meta device stands for a GPU; the count of steps, a scalar, moves there as well."""
    states = []
    for device in ("cpu", "meta"):
        layer = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).to(device)
        optimizer = torch.optim.AdamW(layer.parameters(), 0.1)
        if device == "cpu":
            layer(torch.ones(1, 3, 5, 5)).sum().backward()
            optimizer.step()
            with Checkpoints(tmp_path) as store:
                store.save(1, layer, optimizer, {})
        else:
            with warnings.catch_warnings(action="ignore"):  # about copies to meta tensors doing nothing
                assert Checkpoints(tmp_path).restore(layer, optimizer) == (1, {})
        states.append([optimizer.state[parameter] for parameter in layer.parameters()])
    for saved, loaded in zip(*states, strict=True):
        assert set(loaded) == set(saved) == {"step", "exp_avg", "exp_avg_sq"}
        for name, tensor in loaded.items():
            torch.testing.assert_close(tensor, saved[name].to("meta"), check_stride=True)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch) -> None:
    """It holds the values of its own step; the next one is not due before."""
    written, real = threading.Event(), checkpoints.save_tensors

    def save_late(*args: Any) -> None:
        assert written.wait(60)
        real(*args)

    monkeypatch.setattr(checkpoints, "save_tensors", save_late)
    layer = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    saved = copy.deepcopy((layer.state_dict(), optimizer.state_dict()["state"]))
    with Checkpoints(tmp_path, seconds=0) as store:
        store.save(1, layer, optimizer, {})
        optimizer.step()
        assert not store.due()
        assert not list(tmp_path.glob("*.safetensors"))
        written.set()
    assert store.due()
    assert store.restore(layer, optimizer) == (1, {})
    for before, now in zip(saved, (layer.state_dict(), optimizer.state_dict()["state"]), strict=True):
        torch.testing.assert_close(now, before, rtol=0, atol=0)
