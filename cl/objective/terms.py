"""What a method hands to a loss: contrasts with negatives, pairs without them, or two views of a batch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from cl.objective.batch import Batch
from cl.objective.log_partition import log_partition
from cl.objective.negatives import Negatives
from cl.objective.sums import log_complement_sum, probability_sum, softplus_sum
from cl.runtime.distributed import gather, mean_over_ranks, ranks

EPSILON = 1e-5  # added to variances, as batch norm does


@dataclass(frozen=True)
class Contrast:
    """N queries of this rank, each with P positives, against K shared negatives.

    queries: (N, D) unit rows.
    positives: (N, P, D), of norm at most 1; P > 1 where an image has several keys (JCL), or other images of
        its value (`of_same_value`).
    negatives: K rows, and which of them count for each query.
    temperature: divides every similarity; a scalar tensor if it is learnt.
    weight: of this contrast in the sum over the method's terms.
    log_normalizer: scalar, log of the mean of exp(logit) over candidates, as memory banks estimate it.
    is_positive: (N, P) bool, which of the positives count, the first always; None: all.
    """

    queries: Tensor
    positives: Tensor
    negatives: Negatives
    temperature: float | Tensor = 1.0
    weight: float = 1.0
    log_normalizer: Tensor | None = None
    is_positive: Tensor | None = None

    def positive_logits(self) -> Tensor:
        """(N, P): q . p / temperature."""
        return torch.einsum("nd,npd->np", self.queries, self.positives) / self.temperature

    def positive_log_partition(self) -> Tensor:
        """(N,): log of the sum of exp(q . p / temperature) over the positives."""
        logits = self.positive_logits()
        if self.is_positive is not None:
            logits = logits.masked_fill(~self.is_positive, -math.inf)
        return logits.logsumexp(1)

    def negative_log_partition(self, sharpness: float = 1.0) -> Tensor:
        """(N,): log of the sum of exp(sharpness q . k / temperature) over the negatives; 0 if none counts."""
        result = log_partition(self.queries, self.negatives, self.temperature / sharpness)
        return result.masked_fill(~self.has_negatives(), 0) if self.negatives.can_be_empty else result

    def negative_softplus_sum(self, shift: Tensor) -> Tensor:
        """(N,): sum over the negatives that count of softplus(q . k / temperature - shift); shift is (N,)."""
        return softplus_sum(self.queries, self.negatives, self.temperature, shift)

    def negative_log_complement_sum(self, positive_logit: Tensor, partition: Tensor) -> Tensor:
        """(N,): sum of log(1 - p_k) over the negatives that count, p the softmax over them and a positive.

        1 - p_k of a negative with p_k > LARGEST is the sum of all other probabilities. `partition`, (N,), is
        the log-partition over the positive, whose logits are (N,), and the negatives.
        """
        arguments = self.queries, self.negatives, self.temperature, partition
        others = (positive_logit - partition).exp() + probability_sum(*arguments)
        complement = others.where(others < 0.5, 1)  # if none is left out, they sum to 1
        largest = complement.clamp(min=torch.finfo(others.dtype).tiny).log()
        return log_complement_sum(*arguments) + largest

    @cached_property
    def negative_counts(self) -> Tensor:
        """(N,): how many negatives count for each query, in the queries' dtype."""
        return self.negatives.counts(self.queries)

    def has_negatives(self) -> Tensor:
        """(N,) bool: whether a query has negatives; groups or padding can leave it without any."""
        return self.negative_counts > 0

    def mean_over_positives(self, values: Tensor) -> Tensor:
        """(N,): the mean of values (N, P) over the positives of each query."""
        if self.is_positive is None:
            return values.mean(1)
        return values.where(self.is_positive, 0).sum(1) / self.is_positive.sum(1)

    def mean_over_queries(self, values: Tensor) -> Tensor:
        """Scalar: mean of `values`, (N,) or (N, P), over queries and positives; the form of every loss.

        Queries without negatives are left out. Each rank's result is scaled so that the mean over ranks is
        the mean over all ranks' queries with negatives.
        """
        if values.ndim > 1:
            values = self.mean_over_positives(values)
        if not self.negatives.can_be_empty:
            return values.mean()
        counted = self.has_negatives()
        total = values.where(counted, 0).sum() / len(values)
        return total / mean_over_ranks(counted.to(values.dtype).mean()).clamp(min=1e-12)

    def batch_mean(self, x: Tensor) -> Tensor:
        """(P,): mean of x (N, P) over all ranks' queries with negatives and that positive; 1 without any."""
        if not self.negatives.can_be_empty:
            return mean_over_ranks(x.mean(0))
        counted = self.has_negatives()[:, None]
        counted = (counted if self.is_positive is None else counted & self.is_positive).to(x.dtype)
        fraction = mean_over_ranks(counted.mean(0))
        mean = mean_over_ranks((x * counted).mean(0)) / fraction.clamp(min=1e-12)
        return mean.where(fraction > 0, 1)

    def queries_without_negatives(self) -> Tensor:
        """Scalar int64: the number of queries on all ranks whose group or value leaves no negatives."""
        return (mean_over_ranks((~self.has_negatives()).double().sum()) * ranks()).round().long()

    def squared_distances(self) -> Tensor:
        """(N, P): the squared distance of each positive pair, both scaled to length 1.

        Where other images are positives too, only that of the first, (N, 1), which is of the query's image.
        """
        own = self.positives if self.is_positive is None else self.positives[:, :1]
        queries, positives = F.normalize(self.queries, dim=-1), F.normalize(own, dim=-1)
        return 2 - 2 * torch.einsum("nd,npd->np", queries, positives)


def of_same_value(keys: Tensor, batch: Batch, *, queries: int = 1) -> tuple[Tensor, Tensor] | None:
    """The keys of the k - 1 images drawn together with each image, and which of these have its value.

    From `keys` (N, P, D), P of each image of this rank, to (N E, (k - 1) P, D) and (N E, (k - 1) P) bool,
    image-major, for E `queries` of each image; None if images are drawn one by one.
    """
    if batch.positive is None:
        return None
    k = batch.positive.shape[1]
    sets, shifts = keys.unflatten(0, (-1, k)), range(1, k)  # (N / k, k, P, D)
    others = torch.cat([sets.roll(-shift, 1) for shift in shifts], 2)  # (N / k, k, (k - 1) P, D)
    same = torch.stack([batch.positive == batch.positive.roll(-shift, 1) for shift in shifts], 2)
    counted = same.repeat_interleave(keys.shape[1], 2)
    found, known = (x.flatten(0, 1).repeat_interleave(queries, 0) for x in (others, counted))
    return found, known


def all_against_all(embeddings: Sequence[Tensor], batch: Batch) -> tuple[Tensor, Tensor, Negatives]:
    """Each of an image's V embeddings, V x (N, D), against those of all ranks' other images (SimCLR: V = 2).

    Returns queries (N V, D), image-major; their positives (N V, V - 1, D), the other embeddings of the image;
    and the negatives.
    """
    views = len(embeddings)
    stacked = torch.stack(list(embeddings), 1)  # (N, V, D)
    positives = torch.stack([stacked.roll(-shift, 1) for shift in range(1, views)], 2).flatten(0, 1)
    queries = stacked.flatten(0, 1)
    return queries, positives, Negatives.of_other_images(gather(queries), batch, queries=views)


@dataclass(frozen=True)
class Agreement:
    """N queries of this rank and the positives they should agree with, without negatives (BYOL, SimSiam).

    queries: (N, D) unit rows.
    positives: (N, P, D) unit rows.
    weight: of this term in the sum over the method's terms.
    """

    queries: Tensor
    positives: Tensor
    weight: float = 1.0

    def cosines(self) -> Tensor:
        """(N, P): q . p."""
        return torch.einsum("nd,npd->np", self.queries, self.positives)

    def squared_distances(self) -> Tensor:
        """(N, P): |q - p|^2 of the pairs."""
        return 2 - 2 * self.cosines()


@dataclass(frozen=True)
class TwoViews:
    """N images of this rank in two views, for losses on statistics of the batch (Barlow Twins, VICReg).

    first, second: (N, D) raw rows, as the projector gives them.
    weight: of this term in the sum over the method's terms.
    """

    first: Tensor
    second: Tensor
    weight: float = 1.0

    @property
    def queries(self) -> Tensor:
        """(N, D): the first view as unit rows."""
        return F.normalize(self.first, dim=1)

    @property
    def positives(self) -> Tensor:
        """(N, 1, D): the second view as unit rows."""
        return F.normalize(self.second, dim=1)[:, None]

    def cross_correlation(self) -> Tensor:
        """(D, D): mean of a_i b_j over the images of all ranks, with standardised coordinates."""
        a, b = (x / (mean_over_ranks(x.square().mean(0)) + EPSILON).sqrt() for x in self._centred())
        return mean_over_ranks(a.T @ b / len(a))

    def covariances(self) -> tuple[Tensor, Tensor]:
        """(D, D) of each view: the unbiased covariance of its coordinates over the images of all ranks."""
        images = len(self.first) * ranks()
        a, b = (mean_over_ranks(x.T @ x / len(x)) * (images / (images - 1)) for x in self._centred())
        return a, b

    def squared_distances(self) -> Tensor:
        """(N, 1): |a - b|^2 of the two views, as unit rows."""
        return 2 - 2 * torch.einsum("nd,npd->np", self.queries, self.positives)

    def _centred(self) -> list[Tensor]:
        views = self.first, self.second
        # bfloat16 is too coarse for statistics.
        full = [view if view.dtype == torch.float64 else view.float() for view in views]
        return [view - mean_over_ranks(view.mean(0)) for view in full]


# What a method gives; a loss takes one of these types.
Term = Contrast | Agreement | TwoViews
