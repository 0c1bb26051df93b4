"""Similarity and variance of the augmented views of an image (JCL, Fig. M.3)."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from cl.analyses import AnalysisContext, BatchesConfig, as_numpy
from cl.report.charts import histogram
from cl.runtime.metric_info import MetricInfo

AUGMENTATIONS = 32  # views of each image, as in the paper


class Config(BatchesConfig):
    """`of`: projector's embedding or backbone's features."""

    kind: Literal["views"]
    images: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    of: Literal["embedding", "backbone"]

    def numbers(self) -> dict[str, MetricInfo]:
        return {
            "similarity": MetricInfo("similarity", "mean cosine of an image's views, at most 1", "higher"),
            "variance": MetricInfo("variance", "mean variance of an image's views per dimension", "lower"),
        }


def analyze(config: Config, context: AnalysisContext) -> dict[str, float]:
    """Means over images of the similarity and the variance of an image's views, with histograms."""
    batches = -(-config.images // config.batch_size)
    parts: dict[str, list[Tensor]] = {"similarity": [], "variance": []}
    for views in context.embeddings(config.batch_size, batches, AUGMENTATIONS, of=config.of):
        similarity, variance = spread(torch.stack(views, 1))
        parts["similarity"].append(similarity)
        parts["variance"].append(variance)
    metrics = {}
    for name, tensors in parts.items():
        values = as_numpy(tensors)[: config.images]
        title = f"mean {name} of an image's views"
        series = {f"{AUGMENTATIONS} views of {config.of}": values}
        histogram(name, title.capitalize(), title, series).save(context.out)
        metrics[name] = float(values.mean())
    return metrics


def spread(views: Tensor) -> tuple[Tensor, Tensor]:
    """Similarity and variance (N,) of M unit views (N, M, D) of N images.

    similarity: mean of all M x M cosines, including those of a view with itself: |mean view|^2.
    variance: mean over the D dimensions of the biased variance over views: (1 - similarity) / D.
    """
    views = views.double()
    return (views @ views.mT).mean((1, 2)), views.var(1, correction=0).mean(1)
