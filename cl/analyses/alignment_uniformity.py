"""Alignment and uniformity of the embeddings (Wang and Isola 2020), and in how many dimensions they lie."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from cl.analyses import Context
from cl.charts import Chart
from cl.pretraining import collapse
from cl.runtime.base_config import BaseConfig


class Config(BaseConfig):
    """`batches` of `batch_size` images, two views each."""

    kind: Literal["alignment_uniformity"]
    batch_size: int = Field(gt=1)
    batches: int = Field(gt=0)


def analyze(config: Config, context: Context) -> dict[str, float]:
    """Alignment = mean |x - y|^2 over pairs of views of an image, in [0, 4] (their L_align, alpha 2); see `cl.pretraining.collapse`.

    The other measures are those of the first views. The charts are of the training's log, which has the last batch's positive
    pairs in train mode and the validation images' embeddings: near these numbers, not equal.
    """
    first, second = (
        torch.cat(parts) for parts in zip(*context.embeddings(config.batch_size, config.batches), strict=True)
    )
    measured = {"alignment": alignment(first, second), **collapse.measures(first)}
    chart = Chart(
        "path",
        "Alignment and uniformity, from the training's log",
        "uniformity (less: more even)",
        "alignment",
    )
    for row in context.epochs:
        chart.add("from the first epoch to the last", row["uniformity"], row["alignment"])
    chart.save(context.out)
    rank = context.curve(
        "rank", "Dimensions of the embeddings", {"effective_rank": "effective rank"}, "effective rank"
    )
    rank.save(context.out)
    return measured


def alignment(first: Tensor, second: Tensor) -> float:
    """Mean squared distance of the rows (N, D)."""
    return float((first - second).square().sum(1).mean())
