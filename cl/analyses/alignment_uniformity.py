"""Alignment and uniformity of the embeddings (Wang and Isola 2020), and their effective rank."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from cl.analyses import AnalysisContext, BatchesConfig
from cl.pretraining import collapse
from cl.report.charts import Chart
from cl.runtime.metric_info import MetricInfo


class Config(BatchesConfig):
    """`batches` of `batch_size` images, two views each."""

    kind: Literal["alignment_uniformity"]
    batches: int = Field(gt=0)

    def numbers(self) -> dict[str, MetricInfo]:
        return {
            "alignment": MetricInfo(
                "alignment", "mean squared distance between two views of an image, 0 to 4", "lower"
            ),
            "uniformity": MetricInfo(
                "uniformity", "how evenly images fill the sphere: 0 if all are one point", "lower"
            ),
            "embedding_std": MetricInfo(
                "spread", "mean standard deviation of the dimensions: 0 if all are one point", "higher"
            ),
            "effective_rank": MetricInfo("effective rank", "dimensions that embeddings use", "higher"),
        }


def analyze(config: Config, context: AnalysisContext) -> dict[str, float]:
    """Alignment = mean |x - y|^2 over pairs of views of an image, in [0, 4] (their L_align, alpha 2).

    `cl.pretraining.collapse` measures the rest on the first views. The charts show the training log, which
    measures alignment on the last batch in train mode and the rest on validation images: its numbers are
    close to these but not equal.
    """
    batches = context.embeddings(config.batch_size, config.batches)
    first, second = (torch.cat(views) for views in zip(*batches, strict=True))
    measured = {"alignment": alignment(first, second), **collapse.measures(first)}
    chart = Chart(
        "path", "Alignment and uniformity in training", "uniformity (lower: more even)", "alignment"
    )
    for row in context.epochs:
        chart.add("from the first epoch to the last", row["uniformity"], row["alignment"])
    chart.save(context.out)
    rank = Chart("rank", "Dimensions of the embeddings", "epoch", "effective rank")
    rank.add_log(context.epochs, {"effective_rank": "effective rank"})
    rank.save(context.out)
    return measured


def alignment(first: Tensor, second: Tensor) -> float:
    """Mean squared distance between corresponding rows (N, D)."""
    return float((first - second).square().sum(1).mean())
