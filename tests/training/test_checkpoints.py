"""Checkpoints that a disk, a kill or a full disk damages: found out, told, and replaced by the one before."""

import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from cl.training.checkpoints import Checkpoints
from tests.support.files import flip_bit


def trained(steps: int, store: Checkpoints, width: int = 3) -> None:
    """Checkpoints of a layer whose weights are the number of the step."""
    layer = nn.Linear(width, width)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for step in range(1, steps + 1):
        with torch.no_grad():
            layer.weight.fill_(step)
        store.save(step, layer, optimizer, {"rows": [step]})


def restored(store: Checkpoints, say: Callable[[str], None], width: int = 3) -> int:
    """The step of the checkpoint restored, of which history and weights are checked."""
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
def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_is_told(tmp_path, damage) -> None:
    store, said = Checkpoints(tmp_path), []
    trained(3, store)
    assert restored(store, said.append) == 3
    assert said == []
    DAMAGE[damage](tmp_path / "step-000000003.safetensors")
    assert restored(store, said.append) == 2
    assert len(said) == 1
    assert "step-000000003.safetensors" in said[0]
    assert "goes on from the checkpoint before" in said[0]
    DAMAGE[damage](tmp_path / "step-000000002.safetensors")
    assert restored(store, said.append) == 0
    assert list(tmp_path.iterdir()) == []


WIDTH = 2000  # 16 MB: writing it takes a while


def save_on_and_on(folder: Path) -> None:
    torch.set_num_threads(1)
    trained(10**6, Checkpoints(folder), WIDTH)


def kill_in_a_save(folder: Path) -> bool:
    """Kill a process that saves, once it has begun another checkpoint; whether it was indeed cut short."""
    saving = multiprocessing.get_context("fork").Process(target=save_on_and_on, args=(folder,))
    saving.start()
    deadline = time.monotonic() + 60
    while (
        not (list(folder.glob("*.safetensors")) and list(folder.glob("*.partial/*")))
        and time.monotonic() < deadline
    ):
        time.sleep(0.001)
    saving.kill()
    saving.join()
    return bool(list(folder.glob("*.partial/*")))


def test_a_kill_in_the_middle_of_a_save_costs_that_save_exclusive(tmp_path) -> None:
    assert any(kill_in_a_save(tmp_path) for _ in range(5))
    said: list[str] = []
    assert restored(Checkpoints(tmp_path), said.append, WIDTH) > 0
    assert said == []
    assert all(path.name.startswith("step-") and path.suffix == ".safetensors" for path in tmp_path.iterdir())


def test_a_full_disk_leaves_the_checkpoints_there_were(tmp_path) -> None:
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


def test_the_state_of_an_optimizer_lies_where_its_parameters_lie(tmp_path) -> None:
    """The device that has no memory stands for a GPU; the count of steps, a scalar, moves there as well."""
    states = []
    for device in ("cpu", "meta"):
        layer = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).to(device)
        optimizer = torch.optim.AdamW(layer.parameters(), 0.1)
        if device == "cpu":
            layer(torch.ones(1, 3, 5, 5)).sum().backward()
            optimizer.step()
            Checkpoints(tmp_path).save(1, layer, optimizer, {})
        else:
            with warnings.catch_warnings(action="ignore"):  # that nothing is copied to such parameters
                assert Checkpoints(tmp_path).restore(layer, optimizer) == (1, {})
        states.append([optimizer.state[parameter] for parameter in layer.parameters()])
    for saved, loaded in zip(*states, strict=True):
        assert set(loaded) == set(saved) == {"step", "exp_avg", "exp_avg_sq"}
        for name, tensor in loaded.items():
            assert tensor.device.type == "meta"
            assert (tensor.shape, tensor.dtype, tensor.stride()) == (
                saved[name].shape,
                saved[name].dtype,
                saved[name].stride(),
            )
