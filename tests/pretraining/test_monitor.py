"""What is measured while a method trains."""

import io

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.features.extraction import Cache, extract
from cl.pretraining import collapse
from cl.pretraining.monitor import measure_epoch
from pipeline.support.locations import transform
from pipeline.support.pretraining import build


@pytest.fixture
def monitored(params, here, shard_folder):  # type: ignore[no-untyped-def]
    """The default method, untrained, and a function that measures it and also returns what it printed."""
    task = build(params, here, 120).eval()
    task.alignment = torch.tensor(0.25)
    settings = params.optim.monitor.model_copy(update={"bank": 60, "queries": 30})

    readers = Reader(shard_folder, "train"), Reader(shard_folder, "val")

    def measure(cache: Cache | None = None, trained: int = 5) -> tuple[dict[str, float], str]:
        console = Console(file=io.StringIO(), width=500)
        progress = Progress("test", console)
        measured = measure_epoch(
            task,
            settings,
            *readers,
            transform=transform(params.dataset),
            progress=progress,
            trained=trained,
            cache=cache,
        )
        return measured, console.file.getvalue()

    return task, measure


def test_measures_are_those_of_the_validation_embeddings(monitored, params, here, shard_folder) -> None:
    task, measure = monitored
    measured, _ = measure()
    images = EvalSet(Reader(shard_folder, "val"), transform(params.dataset))
    features = extract(task.method.backbone, images, here)[:30]
    with torch.no_grad():
        embeddings = F.normalize(task.method.projector(features), dim=1)
    assert {
        key: measured[key] for key in ("uniformity", "embedding_std", "effective_rank")
    } == collapse.measures(embeddings)
    assert measured["alignment"] == 0.25
    assert 0 <= measured["knn_top1"] <= 100
    assert 0 <= measured["knn_embedding_top1"] <= 100


def test_a_collapse_is_reported_but_not_at_the_start(monitored) -> None:
    task, measure = monitored
    with torch.no_grad():
        task.method.projector[-1].weight.zero_()
        task.method.projector[-1].bias.fill_(1.0)
    task.progress = 0.1
    assert "collapse" not in measure()[1]
    task.progress = 0.5
    assert "collapse" not in measure(trained=4)[1], "the verdict would not count it either"
    assert "complete collapse: all embeddings are nearly equal, embedding_std is 0.000" in measure()[1]


def test_images_that_are_cached_give_the_same_measures(monitored) -> None:
    task, measure = monitored
    cache: Cache = {}
    measure(cache)
    assert sorted(sum(map(len, images)) for images in cache.values()) == [30, 60]
    with torch.no_grad():
        task.method.backbone.conv1.weight.mul_(-1)
    assert measure(cache) == measure()
