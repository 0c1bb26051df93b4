"""CLD's second branch: the clusters of one view are classes for the other (Wang et al. 2021, section 3)."""

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from cl.methods import MethodConfig
from cl.methods._shared.kmeans import batch_clusters
from cl.networks import heads
from cl.networks.passes import Encoder, l2_normalize
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from cl.runtime.base_config import BaseConfig
from cl.runtime.distributed import gather, local_part


class Grouping(BaseConfig):
    """How a batch is clustered, and the loss between clusters.

    images: how many are clustered together, for any number of processes; the authors cluster the part of the
        batch that a process holds.
    clusters: with more than `images`, every image is a cluster, and all other centres are 0.
    weight: lambda, of this loss relative to the loss between images.
    """

    images: Literal["global"] | int
    clusters: int = Field(gt=1)
    iterations: int = Field(gt=0, description="of k-means")
    temperature: float = Field(gt=0)
    weight: float = Field(gt=0)


class ClusterConfig(MethodConfig):
    """`group`: CLD's loss between clusters."""

    group: Grouping

    @model_validator(mode="after")
    def _two_heads(self) -> Self:
        if self.projector.last_norm not in ("none", "cosine"):
            raise ValueError(
                f"projector.last_norm={self.projector.last_norm}, but two linear layers are put side by side "
                "at the end of the projector; choose none or cosine"
            )
        return self

    def check(self, batch_size: int, epochs: float) -> None:
        """The batch must be divisible into the parts that are clustered."""
        images = self.group.images
        if images != "global" and (images < 2 or batch_size % images):
            raise ValueError(
                f"group.images={images} must divide the batch of {batch_size} images into parts of two or "
                "more; choose a divisor, or global"
            )


def group_head(config: heads.Config, projector: nn.Sequential) -> nn.Module:
    """A second last layer for the projector: what comes before it is shared with the embeddings of images."""
    last = projector[-1]
    assert isinstance(last, nn.Linear), "ClusterConfig refuses batch norm there"
    return heads.build(config.model_copy(update={"hidden": []}), last.in_features)


def two_heads(backbone: nn.Module, projector: nn.Sequential, head: nn.Module) -> Encoder:
    """The encoder from (N, 3, H, W) to (N, 2, D): the embedding of the image, and the one to be clustered."""

    def encode(images: Tensor) -> Tensor:
        hidden = projector[:-1](backbone(images))
        return l2_normalize(torch.stack([projector[-1](hidden), head(hidden)], 1))

    return encode


def cluster_contrasts(first: Tensor, second: Tensor, config: Grouping, instances: int) -> list[Contrast]:
    """Each view's embeddings against the other view's centres; the centre of the image's cluster is positive.

    A centre stands for many images, so groups of images in the data do not apply.

    Args:
        first, second: (N, D) unit rows, the embeddings of this rank's images that are clustered.
        instances: how many terms the loss between images has; the loss between clusters has two.
    """
    with torch.autocast(first.device.type, enabled=False):
        clusters = [_clusters(gather(view), config) for view in (first, second)]
    weight = config.weight * instances / 2
    return [
        _against_centres(view, *other, config, weight)
        for view, other in zip((first, second), reversed(clusters), strict=True)
    ]


def _clusters(embeddings: Tensor, config: Grouping) -> tuple[Tensor, Tensor]:
    """The centres (P k, D) of the P parts of all ranks' batch, and the row of each image's centre (N,)."""
    parts = embeddings.split(len(embeddings) if config.images == "global" else config.images)
    found = [batch_clusters(part, config.clusters, config.iterations) for part in parts]
    labels = [number * config.clusters + own for number, (_, own) in enumerate(found)]
    return torch.cat([centres for centres, _ in found]), torch.cat(labels)


def _against_centres(
    queries: Tensor, centres: Tensor, labels: Tensor, config: Grouping, weight: float
) -> Contrast:
    own = local_part(labels)[:, None]  # (N, 1)
    others = torch.arange(config.clusters - 1, device=own.device) + own // config.clusters * config.clusters
    negatives = Negatives(centres, selected=others + (others >= own))  # (N, k - 1)
    return Contrast(queries, centres[own], negatives, config.temperature, weight)
