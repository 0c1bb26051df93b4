"""Damaged tables, annotations and checkpoints are read, or refused in one sentence: no traceback, no NaN."""

import io
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow
import pytest
import timm
import torch
from pyarrow import parquet
from safetensors.torch import save_file
from timm.models import save_for_hf

import cl
from cl import config
from cl.detection.data import read
from cl.sources import table
from tests.support.pictures import file_of, mutated, photograph
from tests.support.project import compose

COUNTS = [pytest.param(15), pytest.param(1000, marks=pytest.mark.slow)]
ODD = [
    None,
    True,
    -1,
    0,
    0.5,
    1e300,
    float("nan"),
    "",
    "7",
    "\x1b",
    "9" * 5000,
    [],
    {},
    [[]],
    [None],
    {"a": 1},
]


def refused(action: Callable[[], Any]) -> bool:
    """Whether it raises a ValueError of one line; any other error fails the test."""
    try:
        action()
    except ValueError as error:
        assert str(error).strip()
        assert "\n" not in str(error).strip(), error
        return True
    return False


def odd_value(content: str, seed: int) -> str:
    """A JSON document in which one value, at any depth, is another or is gone."""
    rng, whole = random.Random(seed), json.loads(content)
    places = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(whole)
    node, key = rng.choice(places)
    if isinstance(node, dict) and rng.random() < 0.2:
        del node[key]
    else:
        node[key] = rng.choice(ODD)
    return json.dumps(whole)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables(suffix, count, tmp_path) -> None:
    folder = tmp_path / "raw/own"
    folder.mkdir(parents=True)
    cells = {
        "path": [f"{number}.png" for number in range(12)],
        "label": ["cat", "dog", None] * 4,
        "split": ["train", "val"] * 6,
        "group": [None, "a", "b", "c"] * 3,
    }
    for name in cells["path"]:
        (folder / name).write_bytes(file_of(photograph(9, 9), "PNG"))
    rows = [list(cells), *zip(*cells.values(), strict=True)]
    whole = "\n".join(",".join(cell or "" for cell in row) for row in rows).encode()
    if suffix == "parquet":
        file = io.BytesIO()
        parquet.write_table(pyarrow.table(cells), file)
        whole = file.getvalue()
    settings = ["dataset=table", "dataset.name=own", "dataset.labels=some", f"dataset.table=images.{suffix}"]
    dataset = config.check(compose(tmp_path, *settings)).dataset
    for seed in range(count):
        (folder / f"images.{suffix}").write_bytes(mutated(whole, seed))
        refused(lambda: table.splits(dataset, tmp_path / "raw"))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", ["voc", "coco"])
def test_annotations(kind, count, scenes_folder, params, tmp_path) -> None:
    root = tmp_path / "scenes"
    for path in scenes_folder.rglob("*"):
        target = root / path.relative_to(scenes_folder)
        if path.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
    files = {
        "voc": ["VOCdevkit/VOC2007/Annotations/000001.xml", "VOCdevkit/VOC2007/ImageSets/Main/test.txt"],
        "coco": ["coco/annotations/instances_train2017.json", "coco/annotations/instances_val2017.json"],
    }[kind]
    transfer = params.transfers[f"{kind}_c4"]
    for seed in range(count):
        path = root / files[seed % 2]
        whole = path.read_bytes()
        path.unlink()
        by_value = kind == "coco" and seed % 4 < 2
        path.write_bytes(odd_value(whole.decode(), seed).encode() if by_value else mutated(whole, seed))
        found: list[Any] = []
        if not refused(lambda found=found: found.append(read(transfer, root))):
            for record in (*found[0].train, *found[0].test):
                assert np.isfinite(record.boxes).all()
            for record in found[0].train if transfer.masks else ():
                assert set(np.unique(record.masks())) <= {0, 1}
        path.unlink()
        path.symlink_to(scenes_folder / files[seed % 2])


@pytest.mark.parametrize("count", COUNTS)
def test_checkpoints(count, tmp_path) -> None:
    torch.manual_seed(0)
    network = timm.create_model("test_efficientnet", num_classes=0)
    save_for_hf(network, str(tmp_path), safe_serialization=True)
    (tmp_path / "model.safetensors").unlink()
    description = tmp_path / "config.json"
    file = io.BytesIO()
    torch.save({"epoch": 1, "state_dict": network.state_dict()}, file)
    wholes = {"a.pth": file.getvalue()}
    save_file(network.state_dict(), tmp_path / "a.safetensors")
    wholes["a.safetensors"] = (tmp_path / "a.safetensors").read_bytes()
    described = description.read_text()
    image = torch.zeros(1, 3, 64, 64)
    for seed in range(count):
        name = sorted(wholes)[seed % 2]
        by_value = seed % 3 == 0
        description.write_text(odd_value(described, seed) if by_value else described)
        (tmp_path / name).write_bytes(wholes[name] if by_value else mutated(wholes[name], seed))
        found: list[Any] = []
        if not refused(lambda found=found, name=name: found.append(cl.load(tmp_path / name).embed(image))):
            assert found[0].isfinite().all()
