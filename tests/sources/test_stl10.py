"""STL-10: pretraining uses all images, and whatever needs labels uses the labelled ones only."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cl import config
from cl.data.reader import Reader
from cl.evaluations import EvaluationContext, knn, linear, semi
from cl.images.image import UNLABELLED
from cl.pretraining import monitor
from cl.runtime import machine
from cl.training.checkpoints import Checkpoints
from tests.support.archives import splits_of, write_and_read
from tests.support.project import compose
from tests.support.tiny import evaluated


@pytest.fixture
def stl(source, tmp_path) -> tuple[Reader, Reader]:
    return write_and_read(splits_of(source("stl10"), tmp_path / "raw"), tmp_path / "shards")


def test_stl10_trains_on_labelled_and_unlabelled_images(stl, tmp_path) -> None:
    train, val = stl
    assert (len(train), len(val)) == (12 + 20, 8)
    names = np.array([key.decode().split("/")[0] for key in train.keys])
    assert set(names[train.labelled]) == {"train"}
    assert len(train.labelled) == 12
    assert set(train.labels(names == "unlabeled")) == {UNLABELLED}
    assert np.array_equal(val.labelled, np.arange(8))
    for position in (0, 11, 31):
        name, number = train.keys[position].decode().split("/")
        content = (tmp_path / f"raw/stl10_binary/{name}_X.bin").read_bytes()
        image = train.pixels(position)
        for y, x, channel in ((0, 0, 0), (0, 95, 1), (95, 0, 2), (17, 60, 0)):
            offset = channel * 9216 + x * 96 + y  # column by column
            assert image[y, x, channel] == content[int(number) * 27648 + offset]
        if name == "train":
            labels = (tmp_path / "raw/stl10_binary/train_y.bin").read_bytes()
            assert train.labels(position) == labels[int(number)] - 1


@pytest.mark.parametrize(
    "name", ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "unlabeled_X.bin"]
)
def test_stl10_files_that_differ_from_the_official_ones_are_named(name, source, tmp_path) -> None:
    settings = source("stl10")
    path = tmp_path / "raw" / "stl10_binary" / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    remedy = f"remove {path.parent}, .* stl10_binary.tar.gz .md5 91f77"
    with pytest.raises(ValueError, match=f"{name} has md5 [0-9a-f]+, expected [0-9a-f]+; {remedy}") as error:
        splits_of(settings, tmp_path / "raw")
    assert "\n" not in str(error.value)
    path.unlink()
    with pytest.raises(ValueError, match=f"no file {path}; {remedy}"):
        splits_of(settings, tmp_path / "raw")


class Recording(Reader):
    """Records the positions of the decoded images."""

    def __init__(self, folder: Path, split: str) -> None:
        super().__init__(folder, split)
        self.seen: set[int] = set()

    def pixels(self, position: int) -> np.ndarray:
        self.seen.add(int(position))
        return super().pixels(position)


@pytest.fixture
def params(stl, tmp_path) -> config.Params:
    parts = ["evaluations.linear.optim", "evaluations.semi_1.optim", "baselines.supervised.training.optim"]
    sizes = [f"{part}.{size}" for part in parts for size in ("batch_size=12", "epochs=1")]
    small = ["dataset.resize=32", "dataset.crop=32", "optim.monitor.k=3"]
    small += ["baselines.supervised.training.optim.warmup_epochs=0"]
    return config.check(compose(tmp_path, "dataset=stl10", "evaluation=[knn,linear,semi_1]", *small, *sizes))


@pytest.fixture
def context(stl, params, here, quiet, tiny_backbone, tmp_path) -> EvaluationContext:
    return evaluated(
        Recording(tmp_path / "shards", "train"),
        Reader(tmp_path / "shards", "val"),
        params,
        tiny_backbone,
        tmp_path,
    )


def test_the_knn_bank_contains_only_labelled_images(context, params) -> None:
    """The test images are also among the unlabelled ones, where they would be the nearest."""
    settings = params.evaluations["knn"].model_copy(update={"k": 12})
    assert knn.evaluate(settings, context)["pixels"]["top1"] == 100
    with pytest.raises(ValueError, match="k=13 .*, found 12"):
        knn.evaluate(settings.model_copy(update={"k": 13}), context)


def test_linear_evaluation_trains_on_the_labelled_images_only(context, params) -> None:
    linear.evaluate(params.evaluations["linear"], context)
    assert context.train.seen == set(context.train.labelled)


def test_semi_chooses_among_the_labelled_images_only(context, params) -> None:
    settings = params.evaluations["semi_1"]
    metrics = semi.evaluate(settings.model_copy(update={"fraction": 1.0}), context)["backbone"]
    keys = (context.out / "labels.txt").read_text().split()
    assert metrics["labels"] == 12
    assert sorted(keys) == [f"train/{number:06d}" for number in range(12)]
    assert semi.evaluate(settings, context)["backbone"]["labels"] == 4


def test_the_monitor_uses_the_first_labelled_images(context, params, here, quiet) -> None:
    settings = params.optim.monitor.model_copy(update={"bank": 5})
    method = SimpleNamespace(evaluated=(context.backbone, torch.nn.Identity()))
    task = SimpleNamespace(
        method=method, machine=here, alignment=torch.zeros(()), has_groups=False, negatives=0, progress=0.0
    )
    monitor.measure_epoch(
        task, settings, context.train, context.val, transform=context.transform, progress=quiet
    )
    assert context.train.seen == set(context.train.labelled[:5])


def test_the_supervised_baseline_trains_on_the_labelled_images_only(
    context, params, here, tmp_path, monkeypatch
) -> None:
    from pipeline import baseline
    from pipeline.support import locations

    # A machine without workers, whose reads would be recorded in other processes.
    monkeypatch.setattr(machine, "find", lambda *_, **__: here)
    monkeypatch.setattr(locations, "reader", lambda split, dataset: context.train)
    baseline.train("supervised", params, Checkpoints(tmp_path / "checkpoints", 60))
    assert context.train.seen == set(context.train.labelled)
