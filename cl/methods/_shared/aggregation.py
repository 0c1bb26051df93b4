"""A contrast whose positive is a set of rows among the negatives (Local Aggregation)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cl.objective.log_partition import log_partition
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from cl.runtime.distributed import mean_over_ranks

SIMILARITIES = 2**24  # between queries and rows, held at a time
FLOOR = 1e-7  # added to the probability in the authors' code


@dataclass(frozen=True)
class Aggregation(Contrast):
    """L_i = -log(P_i + FLOOR), with P_i the probability of the `close` rows among them and the negatives.

    This is InfoNCE with log(sum of e^s over `close` + FLOOR * sum of e^s over both) as the positive logit, up
    to the constant log(1 + FLOOR). `positives`, the rows of the queries' images, serve only measurements.

    Args:
        close: the rows that count as positives.
    """

    close: Negatives | None = None

    def positive_logits(self) -> Tensor:
        """(N, 1): the logarithm in the class's docstring."""
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

    def largest_logit(self) -> Tensor:
        """Scalar: the largest logit of a query and the row of its image."""
        return (1 - self.squared_distances().amin() / 2) / self.temperature


@torch.no_grad()
def most_similar(queries: Tensor, rows: Tensor, count: int) -> Tensor:
    """(N, count) int64: the rows (n, D) with the largest inner products with each query (N, D), unordered."""
    blocks = queries.split(max(1, SIMILARITIES // len(rows)))
    with torch.autocast(rows.device.type, enabled=False):  # in bfloat16, similar rows would tie
        return torch.cat([(q @ rows.T).topk(count, 1, sorted=False).indices for q in blocks])
