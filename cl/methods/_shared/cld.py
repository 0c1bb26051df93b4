"""CLD's second branch: the clusters of one view are classes for the other (Wang et al. 2021, section 3)."""

from dataclasses import replace
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from cl.methods import BaseMethod, MethodConfig, Setup
from cl.methods._shared.kmeans import batch_clusters
from cl.networks import heads
from cl.networks.passes import l2_normalize
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from cl.runtime.base_config import BaseConfig
from cl.runtime.distributed import gather, local_part


class Clustering(BaseConfig):
    """How a batch is clustered, and the loss between clusters.

    images: how many are clustered together, whatever the number of processes; the authors cluster the images
        of each process.
    clusters: if there are more than `images`, every image is a cluster, and all other centres are 0.
    weight: lambda, the weight relative to the loss between images.
    """

    images: Literal["global"] | int
    clusters: int = Field(gt=1)
    iterations: int = Field(gt=0, description="of k-means")
    temperature: float = Field(gt=0)
    weight: float = Field(gt=0)


class ClusterConfig(MethodConfig):
    """`group`: CLD's clusters, and the loss between them."""

    group: Clustering

    @model_validator(mode="after")
    def _two_heads(self) -> Self:
        if self.projector.last_norm not in ("none", "cosine"):
            raise ValueError(
                f"projector.last_norm={self.projector.last_norm}, but the projector must end in two linear "
                "layers side by side; choose none or cosine"
            )
        return self

    def check(self, batch_size: int, epochs: float) -> None:
        images = self.group.images
        if images != "global" and (images < 2 or batch_size % images):
            raise ValueError(
                f"group.images={images} must divide the batch of {batch_size} images into parts of two or "
                "more; choose a divisor, or global"
            )


class ClusterMethod(BaseMethod):
    """A method with a layer parallel to the projector's last one, for embeddings that are clustered."""

    def __init__(self, config: ClusterConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.clustering, last = config.group, self.projector[-1]
        assert isinstance(last, nn.Linear), "ClusterConfig refuses batch norm there"
        head = config.projector.model_copy(update={"hidden": []})
        self.group_head = heads.build(head, last.in_features)  # its name is in checkpoints

    def embed_twice(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, 2, D) unit rows: an image's embedding, and the one that is clustered."""
        hidden = self.projector[:-1](self.backbone(images))
        return l2_normalize(torch.stack([self.projector[-1](hidden), self.group_head(hidden)], 1))

    def with_clusters(self, instances: list[Contrast], both: list[Tensor]) -> list[Contrast]:
        """Also each of the first two views against the other's centres; the image's cluster is positive.

        A centre represents many images, so the data's groups do not apply. `both`: V x (N, 2, D), of
        `embed_twice`. The mean over the V + 2 terms is half of: that over V, plus lambda times that over two.
        """
        config, terms = self.clustering, len(both) + 2
        contrasts = [replace(each, weight=terms / (2 * len(both))) for each in instances]
        first, second = both[0][:, 1], both[1][:, 1]
        with torch.autocast(first.device.type, enabled=False):
            clusters = [_clusters(gather(view), config) for view in (second, first)]
        for queries, (centres, labels) in zip((first, second), clusters, strict=True):
            positive = local_part(labels)[:, None]  # (N, 1)
            start = positive // config.clusters * config.clusters  # of the part's centres
            others = torch.arange(config.clusters - 1, device=start.device) + start
            negatives = Negatives(centres, selected=others + (others >= positive))  # (N, k - 1)
            weight = config.weight * terms / 4
            contrasts.append(Contrast(queries, centres[positive], negatives, config.temperature, weight))
        return contrasts


def _clusters(embeddings: Tensor, config: Clustering) -> tuple[Tensor, Tensor]:
    """The centres (P k, D) of the P parts of the global batch, and the row of each image's centre (N,)."""
    parts = embeddings.split(len(embeddings) if config.images == "global" else config.images)
    clustered = [batch_clusters(part, config.clusters, config.iterations) for part in parts]
    labels = [number * config.clusters + in_part for number, (_, in_part) in enumerate(clustered)]
    return torch.cat([centres for centres, _ in clustered]), torch.cat(labels)
