"""The manifest and the index: what they list, and how damaged ones are refused."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cl.data.reader import Reader


def test_the_manifest_lists_every_shard_with_its_hash(shard_folder) -> None:
    manifest = json.loads((shard_folder / "manifest.json").read_text())
    assert manifest["splits"]["train"]["images"] == 120
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            content = (shard_folder / shard["name"]).read_bytes()
            assert (len(content), hashlib.sha256(content).hexdigest()) == (shard["bytes"], shard["sha256"])


@pytest.fixture
def copied(shard_folder, tmp_path) -> Path:
    return Path(shutil.copytree(shard_folder, tmp_path / "copy"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("shard", 2), ("shard", 2**32 - 1), ("offset", 2**63), ("offset", 10**6), ("length", 2**32 - 1)],
)
def test_an_index_that_points_outside_its_shards_is_refused(copied, field, value) -> None:
    index = np.load(copied / "val.npy")
    index[3][field] = value
    np.save(copied / "val.npy", index)
    with pytest.raises(ValueError, match="row 3 of val.npy does not match .*: run `dvc repro prepare`"):
        Reader(copied, "val").pixels(3)


def test_an_index_of_another_length_or_type_is_refused(copied) -> None:
    index = np.load(copied / "val.npy")
    for changed in (index[:-1], index["shard"], index[None]):
        np.save(copied / "val.npy", changed)
        with pytest.raises(ValueError, match="does not match the manifest"):
            Reader(copied, "val")
    index["height"], index["width"] = 3, 5
    np.save(copied / "val.npy", index)
    with pytest.raises(ValueError, match="row 0 of val.npy does not match .*: run `dvc repro prepare`"):
        Reader(copied, "val").pixels(0)
    for damaged in (b"", b"\x93NUMPY", (copied / "train.npy").read_bytes()[:-1]):
        (copied / "val.npy").write_bytes(damaged)
        with pytest.raises(ValueError, match="val.npy is damaged: run `dvc repro prepare`"):
            Reader(copied, "val")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"kind": 1}', b"\xff\xfe", b'{"splits": {}}'])
def test_a_damaged_manifest_is_refused(copied, content) -> None:
    (copied / "manifest.json").write_bytes(content)
    with pytest.raises(ValueError, match="manifest.json is damaged: run `dvc repro prepare`"):
        Reader(copied, "train")
