"""Local Aggregation: neighbours in the same cluster of a memory bank against the other neighbours."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from cl.methods import Setup
from cl.methods._shared.kmeans import clusterings
from cl.methods._shared.memory_bank import BankConfig, MemoryBankMethod
from cl.networks.passes import in_passes
from cl.objective.batch import Batch
from cl.objective.log_partition import log_partition
from cl.objective.negatives import Negatives, paired
from cl.objective.terms import Contrast
from cl.runtime.distributed import mean_over_ranks

SIMILARITIES = 2**24  # between queries and rows, held at a time
FLOOR = 1e-7  # added to the probability in the authors' code


class Config(BankConfig):
    """Sizes are fractions of the data, so that they fit data of any size.

    images_per_neighbour: training images per background neighbour.
    images_per_cluster: training images per cluster, on average.
    clusterings: how many; close neighbours share a cluster with the image in at least one of them.
    warmup_epochs: epochs of instance discrimination against `negatives` rows, before the first clustering.
    """

    gives: ClassVar = {"contrasts"}  # no normalizer: neighbours are not samples of noise
    least_views: ClassVar = 1
    kind: Literal["local_aggregation"]
    images_per_neighbour: float = Field(ge=1)
    images_per_cluster: float = Field(ge=1)
    clusterings: int = Field(gt=0)
    iterations: int = Field(gt=0, description="of k-means")
    warmup_epochs: int = Field(ge=0)

    def check(self, batch_size: int, epochs: float) -> None:
        if self.warmup_epochs >= epochs:
            raise ValueError(
                f"warmup_epochs={self.warmup_epochs} leaves none of the {epochs:g} epochs; choose fewer"
            )


@dataclass(frozen=True)
class Aggregation(Contrast):
    """L_i = -log(P_i + FLOOR), with P_i the probability of the `close` rows among them and the negatives.

    This is InfoNCE with log(sum of e^s over `close` + FLOOR * sum of e^s over both) as the positive logit, up
    to the constant log(1 + FLOOR). `positives`, the rows of the queries' images, serve only measurements.
    """

    close: Negatives | None = None

    def positive_logits(self) -> Tensor:
        assert self.close is not None
        close, far = (
            log_partition(self.queries, rows, self.temperature) for rows in (self.close, self.negatives)
        )
        return torch.logaddexp(close, torch.logaddexp(close, far) + math.log(FLOOR))[:, None]

    def mean_over_queries(self, values: Tensor) -> Tensor:
        """Mean over all queries: the loss is 0 where all neighbours are close."""
        return super().mean_over_queries(values) * mean_over_ranks(self.has_negatives().to(values).mean())

    def squared_distances(self) -> Tensor:
        """(N, 1): between each query and the row of its image."""
        return 2 - 2 * (self.queries[:, None] * self.positives).sum(2)


class Method(MemoryBankMethod):
    """Zhuang et al. 2019, section 3.2: background neighbours, and those in a cluster with the image.

    labels: (H, images), clusters in the current epoch's clusterings; -1 during warm-up.
    """

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.warmup_epochs, self.iterations = config.warmup_epochs, config.iterations
        self.neighbours = min(max(2, round(setup.images / config.images_per_neighbour)), setup.images)
        self.clusters = max(1, round(setup.images / config.images_per_cluster))
        self.sizes = {"background_neighbours": self.neighbours, "clusters": self.clusters}
        self.labels = nn.Buffer(torch.full((config.clusterings, setup.images), -1, dtype=torch.int32))
        self.bank.log_normalizer.zero_()  # not needed
        self._clustered = False  # caches a look at `labels`, which would wait for the device

    def begin_epoch(self, epoch: int) -> None:
        """Cluster the bank's rows, after the warm-up."""
        if epoch >= self.warmup_epochs:
            random = [self.generator(f"clustering {number}") for number in range(len(self.labels))]
            self.labels.copy_(clusterings(self.bank.rows, self.clusters, self.iterations, random))

    def forward(self, batch: Batch) -> list[Contrast]:
        """A contrast of N queries per view."""
        queries = in_passes(self.embed, batch.views, separate=2)  # (N, D) each
        self.remember_views(queries, batch)
        self._clustered = self._clustered or bool(self.labels[0, 0] >= 0)
        if not self._clustered:
            return self.against_bank(queries, batch)
        return [self._aggregate(q, batch) for q in queries]

    def _aggregate(self, queries: Tensor, batch: Batch) -> Contrast:
        background = most_similar(queries, self.bank.rows, self.neighbours)  # (N, S), with the image's row
        clusters = self.labels[:, batch.positions, None]  # (H, N, 1)
        together = (self.labels[:, background] == clusters).any(0)  # (N, S)
        far = Negatives(
            self.bank.rows,
            selected=background.where(~together, -1),
            groups=paired(batch.row_groups(), self.bank.groups),
            padded=True,
        )
        close = Negatives(self.bank.rows, selected=background.where(together, -1), padded=True)
        own_rows = self.bank.rows[batch.positions][:, None]
        assert self.temperature is not None, "contrasts have a temperature"
        return Aggregation(queries, own_rows, far, self.temperature, close=close)


@torch.no_grad()
def most_similar(queries: Tensor, rows: Tensor, count: int) -> Tensor:
    """(N, count) int64: the rows (n, D) with the largest inner products with each query (N, D), unordered."""
    blocks = queries.split(max(1, SIMILARITIES // len(rows)))
    with torch.autocast(rows.device.type, enabled=False):  # in bfloat16, similar rows would tie
        return torch.cat([(q @ rows.T).topk(count, 1, sorted=False).indices for q in blocks])
