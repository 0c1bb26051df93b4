"""kNN evaluation of every representation, against votes counted over the pixels of all images."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cl.data.sets import EvalSet
from cl.evaluations import EvaluatedEncoder, EvaluationContext, knn
from cl.features.extraction import Pixels, extract
from tests.support.files import read_csv


def config(**changes: object) -> knn.Config:
    usual = {"grid_k": [], "bank": None, "half": False}
    return knn.Config.model_validate({"kind": "knn", "k": 5, "temperature": 0.07, **usual, **changes})


def by_pixels(
    context: EvaluationContext, k: int = 5, temperature: float = 0.07, *, most: int | None = None
) -> float:
    bank, queries = (
        F.normalize(extract(Pixels(), EvalSet(r, context.transform), context.machine))
        for r in (context.train, context.val)
    )
    labels, truth = (torch.from_numpy(reader.labels()) for reader in (context.train, context.val))
    voting = context.train.evaluated(most)
    values, positions = (queries @ bank[voting].T).topk(k)
    votes = torch.zeros(len(queries), 20).scatter_add_(
        1, labels[voting][positions], (values / temperature).exp()
    )
    return 100 * float((votes.argmax(1) == truth).float().mean())


def test_every_representation_is_evaluated(context) -> None:
    head = nn.Linear(8, 3)
    wide = replace(context, encoder=replace(context.encoder, heads={"embedding": head}))
    metrics = knn.evaluate(config(), wide)
    assert not any(module.training for module in context.backbone.modules())
    assert set(metrics) == {"backbone", "embedding", "pixels"}
    assert metrics["pixels"]["top1"] == pytest.approx(by_pixels(context))
    # The head's score is that of a backbone that ends in this head.
    whole = replace(context, encoder=EvaluatedEncoder(nn.Sequential(context.backbone, head)))
    assert metrics["embedding"] == knn.evaluate(config(), whole)["backbone"]
    assert metrics["backbone"] == knn.evaluate(config(), context)["backbone"]
    assert len((context.out / "classes.csv").read_text().splitlines()) == 21


def test_a_grid_equals_its_points_evaluated_alone(context) -> None:
    metrics = knn.evaluate(config(grid_k=[1, 20]), context)
    assert metrics["pixels"]["top1"] == pytest.approx(by_pixels(context))
    rows = [row for row in read_csv(context.out / "grid.csv") if row["representation"] == "pixels"]
    assert len(rows) == 3
    for row in rows:
        assert float(row["top1"]) == pytest.approx(by_pixels(context, int(row["k"])), abs=0.01)


@pytest.mark.parametrize("tile", [None, 64])
def test_a_part_of_the_training_images_votes(tile, context) -> None:
    context.train.manifest.storage["tile"] = tile
    metrics = knn.evaluate(config(bank=30), context)
    assert metrics["pixels"]["top1"] == pytest.approx(by_pixels(context, most=30))
    assert metrics["pixels"]["top1"] != pytest.approx(by_pixels(context))
    with pytest.raises(ValueError, match="k=31 needs at least 31 labelled"):
        config(bank=30, k=31).check(context.train, context.val)


def test_half_precision(context) -> None:
    half = knn.evaluate(config(half=True), context)
    assert half["pixels"]["top1"] == pytest.approx(by_pixels(context), abs=4)
