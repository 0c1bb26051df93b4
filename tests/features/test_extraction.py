"""Features of whole splits."""

import io

import numpy as np
import torch
from rich.console import Console

from cl.console import progress
from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.features import extraction
from cl.features.extraction import extract


def test_extract_follows_the_index_and_restores_the_mode(shard_folder, params, tiny_backbone, here) -> None:
    reader = Reader(shard_folder, "val")
    backbone = tiny_backbone.train()
    features = extract(backbone, reader, params.dataset, here)
    assert features.shape == (60, 8)
    assert backbone.training
    some = extract(backbone, reader, params.dataset, here, np.array([41, 3]))
    torch.testing.assert_close(some, features[[41, 3]])


def test_the_progress_of_a_long_split_is_shown(
    shard_folder, params, tiny_backbone, here, monkeypatch
) -> None:
    reader, file = Reader(shard_folder, "val"), io.StringIO()
    count = Progress("knn", Console(file=file)).count
    extract(tiny_backbone, reader, params.dataset, here, count=count)
    assert file.getvalue() == "", "few images take no time"
    for name, value in {"FEW": 50, "BATCH": 20}.items():
        monkeypatch.setattr(extraction, name, value)
    monkeypatch.setattr(progress, "RARELY", 0.0)
    extract(tiny_backbone, reader, params.dataset, here, count=count)
    first, *others = file.getvalue().splitlines()
    assert first == "knn: 60 images to encode"
    assert [line.split(",")[0] for line in others] == [
        f"knn: {done} of 60 images to encode" for done in (20, 40, 60)
    ]
