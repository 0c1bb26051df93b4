"""How alike the augmented views of an image are embedded (JCL, Fig. M.3)."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from cl.analyses import Context, as_numpy
from cl.charts import histogram
from cl.runtime.base_config import BaseConfig


class Config(BaseConfig):
    """`images` of `augmentations` views each; `of`: the projector's embedding or the backbone's features."""

    kind: Literal["views"]
    images: int = Field(gt=0)
    augmentations: int = Field(gt=1)
    batch_size: int = Field(gt=0)
    of: Literal["embedding", "backbone"]


def analyze(config: Config, context: Context) -> dict[str, float]:
    """Means over images of the similarity and the variance of an image's views, with histograms.

    Raises:
        AssertionError: the identity variance = (1 - similarity) / D is broken.
    """
    encode = context.embeddings if config.of == "embedding" else context.features
    found: list[tuple[Tensor, Tensor]] = []
    for views in encode(config.batch_size, -(-config.images // config.batch_size), config.augmentations):
        stacked = torch.stack(views, 1)  # (N, M, D)
        similarity, variance = spread(stacked)
        assert torch.allclose(variance * stacked.shape[2], 1 - similarity, atol=1e-4), (
            "views of one image: no unit rows"
        )
        found.append((similarity, variance))
    values = [as_numpy(list(parts))[: config.images] for parts in zip(*found, strict=True)]
    names = {
        "similarity": "mean similarity of an image's views",
        "variance": "mean variance of an image's views",
    }
    for (name, title), numbers in zip(names.items(), values, strict=True):
        histogram(
            name, title.capitalize(), title, {f"{config.augmentations} views of {config.of}": numbers}
        ).save(context.out)
    return {name: float(numbers.mean()) for name, numbers in zip(names, values, strict=True)}


def spread(views: Tensor) -> tuple[Tensor, Tensor]:
    """Similarity and variance (N,) of M unit views (N, M, D) of N images.

    similarity: mean of all M x M cosines, a view with itself included, which is |mean view|^2.
    variance: mean over the D dimensions of the diagonal of the biased covariance, which is (1 - similarity) / D.
    """
    views = views.double()
    return (views @ views.mT).mean((1, 2)), views.var(1, correction=0).mean(1)
