"""Experiments with invented results, whose parameters are those of real recipes."""

import copy
import functools
import tempfile
from pathlib import Path

from cl.report import paper_tables
from cl.report.charts import Chart
from cl.report.experiments import Experiment
from tests.support.project import compose

TABLE3 = "recipe=dcl/table3_cifar10 loss=dcl"
KNN = "knn_200_embedding_top1"


@functools.cache
def composed(run: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        return compose(Path(folder), *run.split())


def experiment(name: str, run: str, metrics: dict[str, float], **changes: object) -> Experiment:
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
    return Experiment(name, "abc", params, images | metrics, provenance)


def curve(name: str, run: str, value: float, **changes: object) -> Experiment:
    made = experiment(name, run, {KNN: 1.0}, **changes)
    chart = Chart("by_epoch", "kNN", "epoch", "%")
    chart.add("backbone", 1, value)
    made.charts["knn_curve"] = [chart]
    return made
