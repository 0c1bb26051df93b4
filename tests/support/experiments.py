"""Experiments with invented results, whose parameters are those of real recipes."""

import copy
import functools
import tempfile
from pathlib import Path
from typing import Any

from cl.report import paper_tables
from cl.report.experiments import Experiment
from cl.runtime.metric_info import Measurement, flat
from tests.support.project import compose

TABLE3 = "recipe=dcl/table3_cifar10 loss=dcl"
KNN = "knn_200_embedding_top1"


@functools.cache
def composed(run: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        return compose(Path(folder), *run.split())


def measured(entry: str, metric: str, mean: float, **others: Any) -> Measurement:
    """A number that a stage has recorded, of the backbone and of one seed unless `others` say otherwise."""
    usual = {"stage": "evaluate", "representation": "backbone", "sd": None, "n": 1, "images": None}
    words = {"title": metric, "meaning": "", "better": "higher"}
    return Measurement(entry=entry, metric=metric, mean=mean, **usual | words | others)


def knn_200(value: float, **others: Any) -> Measurement:
    """The metric KNN."""
    return measured("knn_200", "top1", value, representation="embedding", **others)


def experiment(name: str, run: str, found: float | list[Measurement], **changes: object) -> Experiment:
    """An experiment that found these numbers, or this value of KNN; `changes` are of its parameters."""
    params = copy.deepcopy(composed(run))
    for key, value in changes.items():
        *path, last = key.split("__")
        functools.reduce(lambda values, part: values[part], path, params)[last] = value
    train, val = paper_tables.IMAGES.get(params["dataset"]["kind"], (0, 0))
    images = {"train_images": train - 5, "train_skipped": 5, "val_images": val}
    provenance = {
        "pretrain": {"seconds": 1.0, "finished": "2026-01-01T00:00"},
        "prepare": {"data_manifest_sha256": "d"},
    }
    numbers = found if isinstance(found, list) else [knn_200(found)]
    return Experiment(name, "abc", params, images | flat(numbers), provenance, numbers)


def curve(name: str, run: str, value: float, **changes: object) -> Experiment:
    made = experiment(name, run, 1.0, **changes)
    made.epochs.append({"epoch": "1", "loss": "2.5", "knn_top1": str(value)})
    return made
