"""Similarity of two views of the same image, and of views of different images."""

from typing import Literal

import torch
from pydantic import Field

from cl.analyses import BatchesConfig, Context, as_numpy
from cl.report.charts import histogram
from cl.runtime.metric_info import MetricInfo


class Config(BatchesConfig):
    """`batches` of `batch_size` images, two views each."""

    kind: Literal["similarity"]
    batches: int = Field(gt=0)

    def numbers(self) -> dict[str, MetricInfo]:
        return {
            "positive_mean": MetricInfo("positive pairs", "mean cosine of two views of one image", "higher"),
            "negative_mean": MetricInfo("negative pairs", "mean cosine of views of two images", "lower"),
        }


def analyze(config: Config, context: Context) -> dict[str, float]:
    """Mean cosine of positive pairs (views of one image) and negative pairs (of two), with histograms."""
    positive, negative = [], []
    for first, second in context.embeddings(config.batch_size, config.batches):
        cosines = first @ second.T  # (N, N)
        diagonal = torch.eye(len(cosines), dtype=torch.bool, device=cosines.device)
        positive.append(cosines[diagonal])
        negative.append(cosines[~diagonal])
    values = {"positive": as_numpy(positive).clip(-1, 1), "negative": as_numpy(negative).clip(-1, 1)}
    histogram("cosines", "Similarity of two views", "cosine", values, (-1, 1)).save(context.out)
    return {f"{name}_mean": float(cosines.mean()) for name, cosines in values.items()}
