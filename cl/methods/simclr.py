"""SimCLR: both views of every image against all other views in the batch."""

from itertools import chain, combinations
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cl.methods import BaseMethod, MethodConfig, pairs
from cl.methods._shared.negatives import check_negatives, sample_columns
from cl.networks.passes import in_passes
from cl.objective.batch import Batch
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast, all_against_all, of_same_value
from cl.runtime.distributed import gather, ranks
from cl.runtime.machine import to_device


class Config(MethodConfig):
    """`scale`: 1 is the mean over the 2N anchors, 2 the sum over the two views.

    pool: where negatives come from, both views of the other images (SimCLR) or the positive's view (EqCo).
    negatives: how many of the pool each query samples for itself (EqCo, section 2.3); null for all.
    targets: of three views or more, all are contrasted with the first two, or every pair as if there were
        no others.
    """

    gives: ClassVar = {"contrasts", "columns"}
    kind: Literal["simclr"]
    pool: Literal["both_views", "other_view"]
    negatives: int | None = Field(gt=0)
    targets: Literal["first_two", "all"]

    def check(self, batch_size: int, epochs: float) -> None:
        check_negatives(self.negatives, (batch_size - 1) * (2 if self.pool == "both_views" else 1))


class Method(BaseMethod):
    """Algorithm 1 of SimCLR."""

    config: Config

    def forward(self, batch: Batch) -> list[Contrast]:
        """Views are contrasted with the `targets`; views of one size are encoded in one pass."""
        embeddings = in_passes(self.embed, batch.views, separate=0)  # V x (N, D)
        draws = self.generator("negatives")
        if self.config.targets == "first_two":
            return self._contrasts(embeddings, batch, draws)
        each = (self._contrasts(list(both), batch, draws) for both in combinations(embeddings, 2))
        return list(chain.from_iterable(each))

    def _contrasts(self, embeddings: list[Tensor], batch: Batch, draws: torch.Generator) -> list[Contrast]:
        """Every view against the first two.

        Two views with all their negatives form one contrast of 2N queries with 2(N - 1) negatives each.
        Otherwise, each target view forms one with all other views; with sampled negatives, every pair does.
        """
        pool, sampled = self.config.pool, self.config.negatives is not None
        if len(embeddings) == 2 and pool == "both_views" and not sampled:
            others = of_same_value(torch.stack(embeddings, 1), batch, queries=2)
            return [self.contrast(*all_against_all(embeddings, batch), others=others)]
        both = torch.stack(embeddings[:2], 1).flatten(0, 1)  # (2N, D), the two views of an image side by side
        pools = [gather(both)] * 2 if pool == "both_views" else [gather(x) for x in embeddings[:2]]
        if not sampled:
            queries = [torch.stack([*embeddings[:b], *embeddings[b + 1 :]], 1) for b in range(2)]
            return [self.contrast_in_batch(queries[b], embeddings[b], batch, pools[b]) for b in range(2)]
        return [
            self._sampled(embeddings[a], embeddings[b], pools[b], batch, draws)
            for a, b in pairs(len(embeddings))
        ]

    def _sampled(
        self, queries: Tensor, positives: Tensor, pool: Tensor, batch: Batch, draws: torch.Generator
    ) -> Contrast:
        """N queries against sampled columns of the pool, which has one or two per image of all ranks."""
        assert self.config.negatives is not None
        width = len(pool) // (len(queries) * ranks())
        columns = sample_columns(len(queries), self.config.negatives, draws, width=width, shared=False)
        negatives = Negatives.of_other_images(pool, batch, to_device(columns, queries.device))
        own = positives[:, None]
        return self.contrast(queries, own, negatives, others=of_same_value(own, batch))
