"""Tiny detection transfers, and the contracts that both engines go through."""

import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torchvision.models.resnet import ResNet

from cl.config import Params
from cl.console.progress import Progress
from cl.console.stop import StoppedError
from cl.data.transform import Transform
from cl.detection.average_precision import Detections
from cl.detection.config import Config
from cl.detection.data import read
from cl.detection.records import DataSet
from cl.detection.transfer import FineTuningRun, fine_tune
from cl.networks import backbones
from cl.networks.backbones import Backbone, resnet
from cl.runtime.machine import Machine
from cl.runtime.tensor_files import load_tensors
from cl.training.checkpoints import Checkpoints
from pipeline.support.locations import transform
from tests.support.files import read_csv

RESNET18 = resnet.Config(kind="resnet", name="resnet18", width=1, stem="imagenet", zero_init_residual=False)
NARROW = RESNET18.model_copy(update={"width": 0.125})  # a fiftieth of the operations
RESNET50 = RESNET18.model_copy(update={"name": "resnet50"})
FPN = {"detector": "faster_rcnn_fpn", "pooled": 7, "anchors": [16, 32, 64, 128, 256]}
SMALL = {
    "iterations": 2,
    "milestones": [],
    "warmup": 0,
    "precise_bn": 1,
    "train_sides": [96],
    "test_side": 96,
    "batch_size": 2,
    "reference_batch": 2,
}
OVERFIT = {
    "iterations": 34,
    "milestones": [28],
    "warmup": 5,
    "precise_bn": 4,
    "subset": 4,
    "batch_size": 4,
    "reference_batch": 4,
    "base_lr": 0.02,
    "pooled": 4,
    "rois": 16,
}


def small(params: Params, name: str = "coco_c4", **changes: object) -> Config:
    """A transfer of the default experiment, with two steps of two images."""
    return Config(**params.transfers[name].model_dump() | SMALL | changes)


def build_backbone(config: resnet.Config = NARROW, seed: int = 0) -> ResNet:
    torch.manual_seed(seed)
    return backbones.build(config)


def edit_annotations(folder: Path, change: Callable[[dict], object], split: str = "train2017") -> None:
    """Change the content of COCO's annotation file."""
    path = folder / "coco" / "annotations" / f"instances_{split}.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def detections(boxes: list, scores: list, labels: list) -> Detections:
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4), np.array(scores, np.float32), np.array(labels, np.int64)
    )


def noisy(dataset: DataSet) -> list[Detections]:
    """The test objects with shifted boxes, and three random boxes per image."""
    rng = np.random.default_rng(0)
    found = []
    for record in dataset.test:
        shifted = record.boxes + rng.normal(0, 1.5, record.boxes.shape)
        boxes = np.concatenate([shifted, rng.uniform(0, 40, (3, 4)) + [0, 0, 45, 45]])
        labels = np.concatenate([record.labels, rng.integers(0, len(dataset.classes), 3)])
        found.append(detections(boxes, rng.uniform(0, 1, len(boxes)), labels))
    return found


def tuned(
    config: Config,
    network: Backbone,
    dataset: DataSet,
    eval_view: Transform,
    *,
    out: Path,
    seed: int = 0,
    checkpoints: Checkpoints | None = None,
) -> dict[str, float]:
    """The metrics of a fine-tuning on the CPU, which writes to `out`."""
    out.mkdir(exist_ok=True)
    machine = Machine(torch.device("cpu"), 0, "fp32")
    progress = Progress("test", Console(file=io.StringIO()))
    return fine_tune(
        config, network, dataset, eval_view, FineTuningRun(seed, machine, progress, out, checkpoints)
    )


class StopsWhenSaved(Checkpoints):
    """Sends itself SIGTERM at the first checkpoint."""

    def due(self) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return True


def assert_resumes_bit_for_bit(engine: str, params: Params, scenes_folder: Path, folder: Path) -> None:
    config = small(params, iterations=4, train_sides=[64], test_side=64, engine=engine)
    data = read(config, scenes_folder)

    eval_view = transform(params.dataset)

    def train(out: str, checkpoints: Checkpoints) -> dict[str, float]:
        network = build_backbone(RESNET18 if engine == "detectron2" else NARROW, seed=1)
        return tuned(config, network, data, eval_view, out=folder / out, seed=5, checkpoints=checkpoints)

    whole = train("a", Checkpoints(folder / "whole"))
    with pytest.raises(StoppedError, match="after step 2"):
        train("b", StopsWhenSaved(folder / "cut"))
    assert train("b", Checkpoints(folder / "cut")) == whole
    weights = [load_tensors(folder / part / "step-000000004.safetensors")[0] for part in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    rows = [read_csv(folder / part / "epochs.csv") for part in ("a", "b")]
    assert [row["loss"] for row in rows[0]] == [row["loss"] for row in rows[1]]


def ap50_of_overfitting(
    engine: str, params: Params, scenes_folder: Path, out: Path, **changes: object
) -> float:
    """AP50 on the four images that the detector was trained on."""
    settings = OVERFIT | {"engine": engine, "test": "2007/trainval"} | changes
    config = small(params, "voc_c4", **settings)
    data = read(config, scenes_folder)
    return tuned(config, build_backbone(RESNET18, seed=1), data, transform(params.dataset), out=out)["ap50"]
