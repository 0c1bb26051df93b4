"""Files of tensors: complete or absent, and any damage is noticed."""

import os
import random
from pathlib import Path

import pytest
import safetensors.torch
import torch

from cl.runtime.tensor_files import DamagedError, load_tensors, save_tensors
from tests.support.files import flip_bit

TENSORS = {
    "weight": torch.randn(7, 5, generator=torch.Generator().manual_seed(0)),
    "half": torch.arange(60).bfloat16(),
    "transposed": torch.arange(12.0).view(3, 4).T,
    "count": torch.tensor(5),
    "flags": torch.tensor([True, False]),
    "none": torch.zeros(0, 3),
}


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "a.safetensors"


def equal_to_saved(tensors: dict[str, torch.Tensor]) -> bool:
    return tensors.keys() == TENSORS.keys() and all(
        torch.equal(tensors[name], tensor) and tensors[name].dtype == tensor.dtype
        for name, tensor in TENSORS.items()
    )


def test_no_damage_goes_unnoticed(path) -> None:
    """After a flipped bit or a cut, loading raises an error that names the file or returns what was saved."""
    draw, noticed = random.Random(0), 0
    save_tensors(TENSORS, path, {"history": '{"rows": [1, 2]}'})
    whole = path.read_bytes()
    for number in range(300):
        path.write_bytes(whole[: draw.randrange(len(whole))] if number % 5 == 0 else whole)
        if number % 5:
            flip_bit(path, draw.randrange(8 * len(whole)))
        try:
            tensors, _ = load_tensors(path)
            assert equal_to_saved(tensors), number
        except DamagedError as error:
            assert str(error).startswith(str(path))
            noticed += 1
    assert noticed >= 280, "all except flips in the name of the checksum"


def test_metadata_comes_back_without_the_checksum(path) -> None:
    for metadata in ({}, {"history": "é"}, {"a": "1", "b": "2", "c": "3"}):
        save_tensors(TENSORS, path, metadata)
        tensors, loaded = load_tensors(path)
        assert equal_to_saved(tensors)
        assert loaded == metadata


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_files_of_other_programs_need_no_checksum(path, metadata) -> None:
    safetensors.torch.save_file({"x": torch.ones(3)}, path, metadata)
    tensors, loaded = load_tensors(path)
    assert torch.equal(tensors["x"], torch.ones(3))
    assert loaded == (metadata or {})


def test_a_failed_save_leaves_the_previous_file_and_nothing_else(path, monkeypatch) -> None:
    save_tensors({"x": torch.ones(3)}, path, {"note": "first"})

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        save_tensors({"x": torch.zeros(3)}, path)
    tensors, metadata = load_tensors(path)
    assert torch.equal(tensors["x"], torch.ones(3))
    assert metadata == {"note": "first"}
    assert list(path.parent.iterdir()) == [path]


def test_a_file_of_another_format_is_named_in_the_error(path) -> None:
    path.write_bytes(b"not tensors")
    with pytest.raises(DamagedError, match="a.safetensors is incomplete or not a safetensors file"):
        load_tensors(path)
