"""Checkpoints that a disk, a kill or a full disk damages: found out, told, and replaced by the one before."""

import multiprocessing
import random
import resource
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from cl.training.checkpoints import Checkpoints, DamagedError, load_tensors, save_tensors

TENSORS = {
    "weight": torch.randn(7, 5, generator=torch.Generator().manual_seed(0)),
    "half": torch.arange(60).bfloat16(),
    "transposed": torch.arange(12.0).view(3, 4).T,
    "count": torch.tensor(5),
    "flags": torch.tensor([True, False]),
    "none": torch.zeros(0, 3),
}


def same(found: dict[str, torch.Tensor]) -> bool:
    return found.keys() == TENSORS.keys() and all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype
        for name, tensor in TENSORS.items()
    )


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_no_damage_goes_unnoticed(tmp_path) -> None:
    """A bit flipped anywhere, or an end cut off: an error that names the file, or the tensors as they were."""
    path, draw, told = tmp_path / "a.safetensors", random.Random(0), 0
    save_tensors(TENSORS, path, {"history": '{"rows": [1, 2]}'})
    whole = path.read_bytes()
    for number in range(300):
        path.write_bytes(whole[: draw.randrange(len(whole))] if number % 5 == 0 else whole)
        if number % 5:
            flip(path, draw.randrange(8 * len(whole)))
        try:
            tensors, _ = load_tensors(path)
            assert same(tensors), number
        except DamagedError as error:
            assert str(error).startswith(str(path))
            told += 1
    assert told >= 280, "all but flips in the checksum's own name"


def test_metadata_comes_back_without_the_checksum(tmp_path) -> None:
    for metadata in ({}, {"history": "é"}, {"a": "1", "b": "2", "c": "3"}):
        save_tensors(TENSORS, tmp_path / "a.safetensors", metadata)
        tensors, found = load_tensors(tmp_path / "a.safetensors")
        assert same(tensors)
        assert found == metadata


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_files_from_elsewhere_need_no_checksum(tmp_path, metadata) -> None:
    safetensors.torch.save_file({"x": torch.ones(3)}, tmp_path / "a.safetensors", metadata)
    tensors, found = load_tensors(tmp_path / "a.safetensors")
    assert torch.equal(tensors["x"], torch.ones(3))
    assert found == (metadata or {})


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
    return lambda path: flip(path, 8 * path.read_bytes().index(text))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "tensors": lambda path: flip(path, 8 * path.stat().st_size - 1),
    "length": lambda path: flip(path, 0),
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


def test_a_kill_in_the_middle_of_a_save_costs_that_save_alone(tmp_path) -> None:
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
