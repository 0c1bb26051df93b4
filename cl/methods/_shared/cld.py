"""CLD's group branch: the groups of one view are classes for the other (Wang et al. 2021, section 3)."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from cl.methods._shared.kmeans import batch_clusters
from cl.networks import heads
from cl.networks.passes import Encoder, l2_normalize
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from cl.runtime.base_config import BaseConfig
from cl.runtime.distributed import gather, local_part


class Grouping(BaseConfig):
    """How a batch is clustered, and the group loss.

    images: that are clustered together, whatever the number of processes: the authors cluster the part of the
        batch that a process holds.
    clusters: with more than `images`, every image is a group of its own, and all other centres are 0.
    weight: lambda, of the group loss relative to the loss between images.
    """

    images: Literal["global"] | int
    clusters: int = Field(gt=1)
    iterations: int = Field(gt=0, description="of k-means")
    temperature: float = Field(gt=0)
    weight: float = Field(gt=0)

    def check(self, batch_size: int) -> None:
        """Raises ValueError if the batch cannot be split."""
        if self.images != "global" and (self.images < 2 or batch_size % self.images):
            raise ValueError(
                f"group.images={self.images} must divide the batch of {batch_size} images into parts of two "
                "or more; choose a divisor, or global"
            )


def check_projector(projector: heads.Config) -> None:
    """Raises ValueError if the projector ends with batch norm: two linear layers share what is before it."""
    if projector.last_norm not in ("none", "cosine"):
        raise ValueError(
            f"projector.last_norm={projector.last_norm}, but two linear layers are put side by side at the "
            "end of the projector; choose none or cosine"
        )


def group_head(config: heads.Config, projector: nn.Sequential) -> nn.Module:
    """A second last layer for the projector: what comes before it is shared with the embeddings of images."""
    last = projector[-1]
    assert isinstance(last, nn.Linear), "check_projector"
    return heads.build(config.model_copy(update={"hidden": []}), last.in_features)


def two_heads(backbone: nn.Module, projector: nn.Sequential, head: nn.Module) -> Encoder:
    """The encoder from (N, 3, H, W) to (N, 2, D): the embedding of the image, and that for groups."""

    def encode(images: Tensor) -> Tensor:
        hidden = projector[:-1](backbone(images))
        return l2_normalize(torch.stack([projector[-1](hidden), head(hidden)], 1))

    return encode


def group_contrasts(first: Tensor, second: Tensor, config: Grouping, instances: int) -> list[Contrast]:
    """Each view's embeddings against the other view's centres, with that of the image's group as positive.

    A centre stands for many images, so groups of images that the data may have do not apply.

    Args:
        first, second: (N, D) unit rows, embeddings for groups of this rank's images.
        instances: how many terms the loss between images has; the group loss has two.
    """
    with torch.autocast(first.device.type, enabled=False):
        groups = [_groups(gather(view), config) for view in (first, second)]
    weight = config.weight * instances / 2
    return [
        _against_centres(view, *other, config, weight)
        for view, other in zip((first, second), reversed(groups), strict=True)
    ]


def _groups(embeddings: Tensor, config: Grouping) -> tuple[Tensor, Tensor]:
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
