"""Features of whole splits."""

import io

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.gpu.roofline.fake_gpu import GPU, FakeGpu
from cl.console import progress
from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.features import extraction
from cl.features.extraction import Cache, extract
from cl.runtime.machine import Machine
from pipeline.support.locations import transform
from tests.support.tiny import TinyBackbone


class CountingReader(Reader):
    """Counts the images that this process reads."""

    reads = 0

    def pixels(self, position: int) -> np.ndarray:
        self.reads += 1
        return super().pixels(position)


@pytest.fixture
def images(shard_folder, params) -> EvalSet:
    return EvalSet(Reader(shard_folder, "val"), transform(params.dataset))


def test_extract_follows_the_index_and_restores_the_mode(images, tiny_backbone, here) -> None:
    backbone = tiny_backbone.train()
    features = extract(backbone, images, here)
    assert features.shape == (60, 8)
    assert backbone.training
    some = extract(backbone, EvalSet(images.reader, images.transform, np.array([41, 3])), here)
    torch.testing.assert_close(some, features[[41, 3]])


def test_the_progress_of_a_long_split_is_shown(images, tiny_backbone, here, monkeypatch) -> None:
    file = io.StringIO()
    count = Progress("knn", Console(file=file)).count
    extract(tiny_backbone, images, here, count=count)
    assert file.getvalue() == "", "few images take no time"
    for name, value in {"FEW": 50, "BATCH": 20}.items():
        monkeypatch.setattr(extraction, name, value)
    monkeypatch.setattr(progress, "RARELY", 0.0)
    extract(tiny_backbone, images, here, count=count)
    first, *others = file.getvalue().splitlines()
    assert first == "knn: 60 images to encode"
    expected = [f"knn: {done} of 60 images to encode" for done in (20, 40)]
    assert [line.split(",")[0] for line in others] == expected


def test_reading_a_split_waits_for_the_gpu_only_at_its_end(images, monkeypatch) -> None:
    monkeypatch.setattr(extraction, "BATCH", 20)
    with FakeGpu() as gpu:
        backbone = TinyBackbone().to(GPU)
        gpu.clear()
        features = extract(backbone, images, Machine(GPU, 0, "fp32"))
    assert features.shape == (60, 8)
    assert gpu.counts()["convolution"] == 3
    assert gpu.waits == 1, "whether all features are finite"


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_features_that_are_not_finite_are_refused(value, images, tiny_backbone, here) -> None:
    """Those of one image: all others would be its neighbours, or none."""

    def spoil(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        output[7, 3] = value

    images = EvalSet(images.reader, images.transform, np.arange(20, 60))
    hook = tiny_backbone.register_forward_hook(spoil)
    with pytest.raises(FloatingPointError, match=f"1 of 40 images .* {images.reader.keys[27].decode()}:"):
        extract(tiny_backbone, images, here)
    hook.remove()


@pytest.mark.parametrize("workers", [0, 2])
def test_cached_images_are_read_once(shard_folder, params, monkeypatch, workers) -> None:
    """With workers, there are more batches than memory for batches."""
    monkeypatch.setattr(extraction, "BATCH", 4)
    monkeypatch.setattr(extraction, "FEW", 10)
    reader, here = CountingReader(shard_folder, "val"), Machine(torch.device("cpu"), workers, "fp32")
    cache: Cache = {}
    eval_view = transform(params.dataset)
    for seed in range(2):
        torch.manual_seed(seed)
        backbone = TinyBackbone()
        for positions in (None, np.arange(2, 50)):
            expected = extract(backbone, EvalSet(Reader(shard_folder, "val"), eval_view, positions), here)
            found = extract(backbone, EvalSet(reader, eval_view, positions), here, cache=cache)
            assert torch.equal(found, expected)
    assert reader.reads == (0 if workers else 60 + 48)
    assert [sum(map(len, images)) for images in cache.values()] == [60, 48]


def test_only_images_that_take_little_memory_are_cached(images, here, monkeypatch) -> None:
    size = 60 * 3 * 32 * 32
    for limit, batches in ((size, 1), (size - 1, 0)):
        monkeypatch.setattr(extraction, "ON_CPU", limit)
        cache: Cache = {}
        extract(TinyBackbone(), images, here, cache=cache)
        assert len(cache) == batches
