"""SimCLR: both views of every image against all other views in the batch."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cl.contrast import Contrast
from cl.methods import (
    BaseMethod,
    MethodConfig,
    Setup,
    in_passes,
    pairs,
    sample_without_replacement,
    skip_own_columns,
)
from cl.runtime.distributed import gather, global_rows, ranks
from cl.runtime.machine import to_device


class Config(MethodConfig):
    """`scale` multiplies the loss: 1 is the mean over the 2N anchors, 2 the sum over the two views.

    pool: where negatives come from, both views of the other images (SimCLR) or the positive's view (EqCo).
    negatives: how many of the pool each query draws for itself (EqCo, section 2.3); null for all.
    """

    gives_negatives: ClassVar[bool] = True
    kind: Literal["simclr"]
    pool: Literal["both_views", "other_view"]
    negatives: int | None = Field(gt=0)

    def candidates(self, batch_size: int) -> int | None:
        """2 (N - 1) or N - 1."""
        return (batch_size - 1) * (2 if self.pool == "both_views" else 1)


class Method(BaseMethod):
    """Algorithm 1 of SimCLR."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.pool, self.negatives = config.pool, config.negatives

    def forward(self, views: list[Tensor]) -> list[Contrast]:
        """V views (N, 3, H, W), those of one size encoded in one pass; every view is contrasted with the first two.

        Two views with all their negatives are one contrast of 2N queries with 2(N - 1) negatives each; otherwise there
        is one for each pair of a view and a target view.
        """
        embeddings = in_passes(self.embed, views, separate=0)  # V x (N, D)
        both = torch.stack(embeddings[:2], 1).flatten(
            0, 1
        )  # (2N, D), image-major: i's views are 2i and 2i + 1
        if len(views) == 2 and self.pool == "both_views" and self.negatives is None:
            other = torch.arange(len(both), device=both.device) ^ 1
            itself = global_rows(len(both))  # among all ranks' rows
            excluded = torch.stack([itself, itself ^ 1], 1)
            return [Contrast(both, both[other, None], gather(both), excluded, temperature=self.temperature)]
        pools = [gather(both)] * 2 if self.pool == "both_views" else [gather(x) for x in embeddings[:2]]
        generator = self.generator("negatives")
        return [
            self._contrast(embeddings[a], embeddings[b], pools[b], generator) for a, b in pairs(len(views))
        ]

    def _contrast(
        self, queries: Tensor, positives: Tensor, pool: Tensor, generator: torch.Generator
    ) -> Contrast:
        """N queries against the pool's columns, one or two for each of all ranks' images, but their own; or some of them."""
        n, everyone = len(queries), len(queries) * ranks()
        width = len(pool) // everyone
        first = width * global_rows(n)
        if self.negatives is None:
            excluded = first[:, None] + torch.arange(width)
            return Contrast(queries, positives[:, None], pool, excluded, temperature=self.temperature)
        candidates = width * (everyone - 1)
        count = min(self.negatives, candidates)  # a smaller last batch has fewer
        selected = to_device(
            skip_own_columns(sample_without_replacement(n, candidates, count, generator), first, width),
            pool.device,
        )
        return Contrast(queries, positives[:, None], pool, selected=selected, temperature=self.temperature)
