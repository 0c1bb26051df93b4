"""Shards that change, and images that cannot be decoded."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from cl.data import reader as module
from cl.data.reader import Reader
from tests.support.files import damaged
from tests.support.pictures import file_of, photograph
from tests.support.tiny import stored


def test_a_shard_of_another_size_is_refused(shard_folder, tmp_path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(shard_folder, copy)
    path = copy / "train-000001.tar"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ValueError, match=r"train-000001.tar has \d+ bytes, but its manifest says \d+"):
        Reader(copy, "train")
    path.unlink()
    with pytest.raises(ValueError, match=r"train-000001.tar is missing: run `dvc repro prepare` again"):
        Reader(copy, "train")


@pytest.mark.parametrize("change", ["cut", "written", "replaced"])
@pytest.mark.parametrize("opened", [False, True])
def test_a_shard_that_changes_while_it_is_read_is_detected(shard_folder, tmp_path, change, opened) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(shard_folder, copy)
    reader, path = Reader(copy, "train"), copy / "train-000001.tar"
    before = bytes(reader.read(60)) if opened else b""
    if change == "cut":
        os.truncate(path, 1000)
    elif change == "written":
        with path.open("r+b") as file:
            file.seek(600)
            file.write(b"other")
        os.utime(path, ns=(1, 1))  # whatever the clock's resolution
    else:
        shutil.copy(path, tmp_path / "new")
        os.replace(tmp_path / "new", path)
    if change == "replaced" and opened:
        assert bytes(reader.read(60)) == before, "the file that was opened is still there"
    else:
        with pytest.raises(ValueError, match=r"train-000001.tar changed .*: start again"):
            reader.read(60)


def test_few_shards_are_open_at_a_time(shard_folder, monkeypatch) -> None:
    """ImageNet has more than a process may open."""
    whole, few = (Reader(shard_folder, "train") for _ in range(2))
    positions = [*range(0, len(whole), 7), *range(0, len(whole), 11)]
    expected = [bytes(whole.read(position)) for position in positions]
    monkeypatch.setattr(module, "OPEN", 1)
    before = len([*Path("/proc/self/fd").iterdir()])
    assert [bytes(few.read(position)) for position in positions] == expected
    assert len([*Path("/proc/self/fd").iterdir()]) == before + 2


def test_an_image_that_cannot_be_decoded_is_named(tmp_path) -> None:
    files = {"cat/whole.jpg": file_of(photograph()), "cat/half.jpg": file_of(photograph())[:-10]}
    reader = stored(tmp_path, files, verify=False)
    position = [key.decode() for key in reader.keys].index("cat/half")
    with pytest.raises(ValueError, match=r"^cat/half cannot be decoded \(.*\): .* dataset.verify=true$"):
        reader.pixels(position)


@pytest.mark.parametrize("name", ["manifest.json", "train.npy", "train_keys.npy"])
def test_damage_to_what_describes_the_shards_is_found_or_does_no_harm(name, shard_folder, tmp_path) -> None:
    copy, rng = tmp_path / "copy", np.random.default_rng(0)
    shutil.copytree(shard_folder, copy)
    before, content = Reader(copy, "train"), (copy / name).read_bytes()
    for _ in range(150):
        (copy / name).write_bytes(damaged(content, rng))
        try:
            reader = Reader(copy, "train")
            labels, sizes = reader.labels(), [reader.pixels(row).shape for row in range(0, len(reader), 20)]
            assert len(reader.keys) == len(reader)
        except ValueError as error:
            assert "\n" not in str(error)
        else:
            assert len(sizes) and labels.max() < len(before.manifest.classes)
            assert reader.manifest.classes == before.manifest.classes
