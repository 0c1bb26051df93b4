"""What a method hands to a loss: contrasts with negatives, pairs without them, or two views of a batch."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from cl.objective.log_partition import log_partition
from cl.objective.ring import Sharded
from cl.objective.sums import log_complement_sum, softplus_sum
from cl.runtime.distributed import mean_over_ranks, ranks
from cl.runtime.machine import to_device

EPSILON = 1e-5  # added to variances, as batch norm does


class Term(Protocol):
    """What a method gives: `Contrast`, `Agreement` or `TwoViews`. A loss takes one of these types.

    weight: of this term in the sum over terms.
    penalty: scalar that the method adds to this term's loss.
    queries: (N, D). positives: (N, P, D).
    """

    @property
    def weight(self) -> float: ...

    @property
    def penalty(self) -> Tensor | float: ...

    @property
    def queries(self) -> Tensor: ...

    @property
    def positives(self) -> Tensor: ...

    def squared_distances(self) -> Tensor:
        """(N, P): 2 - 2 q . p of the positive pairs, their squared distance where both are unit rows."""

    def largest_logit(self) -> Tensor:
        """A scalar for the message about a loss that is not finite."""


@dataclass(frozen=True)
class Contrast:
    """N queries of this rank, each with P positives, against K shared negatives.

    Args:
        queries: (N, D) unit rows.
        positives: (N, P, D), of norm at most 1; P > 1 where an image has several keys (JCL).
        negatives: (K, D): a queue, or the keys of all ranks, which `Sharded` leaves where they are.
        excluded: (N, E) int64, columns of `negatives` that do not count for a query; distinct in a row.
            Leave on the CPU those that are known there: it looks whether they are mutual.
        selected: (N, S) int64, the only columns that count for a query, each as often as it occurs; not
            together with `excluded`.
        temperature: divides every similarity.
        weight: of this contrast in the sum over the method's terms.
        query_groups, negative_groups: (N,) and (K,) int64: a column whose group equals the query's does not
            count, whether excluded, selected or neither; None where the data has no groups.
        unit: whether all queries and negatives have norm at most 1; else the log-partition finds a bound.
        padded: whether `selected` contains -1, which is not a column: queries have different numbers of them.
        penalty: scalar that is added to this contrast's loss, whatever the loss.
        log_normalizer: scalar, log of the mean of exp(logit) over candidates, as memory banks estimate it.
    """

    queries: Tensor
    positives: Tensor
    negatives: Tensor | Sharded
    excluded: Tensor | None = None
    selected: Tensor | None = None
    temperature: float = 1.0
    weight: float = 1.0
    query_groups: Tensor | None = None
    negative_groups: Tensor | None = None
    unit: bool = True
    padded: bool = False
    penalty: Tensor | float = 0.0
    log_normalizer: Tensor | None = None

    def positive_logits(self) -> Tensor:
        """(N, P): q . p / temperature."""
        return torch.einsum("nd,npd->np", self.queries, self.positives) / self.temperature

    def negative_log_partition(self, sharpness: float = 1.0) -> Tensor:
        """(N,): log of the sum of exp(sharpness q . k / temperature) over the negatives; 0 if none counts."""
        result = log_partition(
            self.queries,
            self.negatives,
            self.excluded,
            self.temperature / sharpness,
            selected=self.selected,
            unit=self.unit,
            groups=self._groups(),
        )
        return result.masked_fill(~self.has_negatives(), 0) if self._may_lack_negatives else result

    def negative_softplus_sum(self, shift: Tensor) -> Tensor:
        """(N,): sum over the negatives that count of softplus(q . k / temperature - shift); shift is (N,)."""
        return softplus_sum(
            self.queries,
            self.negatives,
            self.excluded,
            self.temperature,
            shift,
            selected=self.selected,
            groups=self._groups(),
        )

    def negative_log_complement_sum(self, shift: Tensor) -> Tensor:
        """(N,): sum over the negatives that count of log(1 - exp(q . k / temperature - shift))."""
        return log_complement_sum(
            self.queries,
            self.negatives,
            self.excluded,
            self.temperature,
            shift,
            selected=self.selected,
            groups=self._groups(),
        )

    def negative_counts(self) -> Tensor:
        """(N,): how many negatives count for each query, in the queries' dtype."""
        return self._counts

    @cached_property
    def _counts(self) -> Tensor:
        groups, n = self._groups(), len(self.queries)
        if self.selected is not None:
            counted = to_device(self.selected, self.queries.device) >= 0
            if groups is not None:
                counted &= ~self._same_group(self.selected)
            return counted.sum(1).to(self.queries.dtype)
        listed = 0 if self.excluded is None else self.excluded.shape[1]
        counts = self.queries.new_full((n,), len(self.negatives) - listed)
        if groups is None:
            return counts
        same = 0 if self.excluded is None else self._same_group(self.excluded).sum(1)
        return counts - _group_sizes(*groups) + same

    @property
    def _may_lack_negatives(self) -> bool:
        return self.query_groups is not None or self.padded

    def has_negatives(self) -> Tensor:
        """(N,) bool: whether any negative counts for a query; groups or padding can leave it without any."""
        return self.negative_counts() > 0

    def mean_over_queries(self, values: Tensor) -> Tensor:
        """Scalar: mean of `values`, (N,) or (N, P), over queries and positives; the form of every loss.

        Queries without negatives are left out: each rank's result is scaled so that the mean over ranks is
        the mean over the queries of all ranks that have negatives.
        """
        if not self._may_lack_negatives:
            return values.mean()
        counted = self.has_negatives()
        per_query = values.flatten(1).mean(1) if values.ndim > 1 else values
        total = per_query.where(counted, 0).sum() / len(values)
        return total / mean_over_ranks(counted.to(values.dtype).mean()).clamp(min=1e-12)

    def batch_mean(self, x: Tensor) -> Tensor:
        """(P,): mean of x (N, P) over all ranks' queries that have negatives; 1 if none has."""
        if not self._may_lack_negatives:
            return mean_over_ranks(x.mean(0))
        counted = self.has_negatives()[:, None].to(x.dtype)
        fraction = mean_over_ranks(counted.mean(0))
        mean = mean_over_ranks((x * counted).mean(0)) / fraction.clamp(min=1e-12)
        return mean.where(fraction > 0, 1)

    def queries_without_negatives(self) -> Tensor:
        """Scalar int64: the number of queries, over all ranks, that are without negatives due to groups."""
        return (mean_over_ranks((~self.has_negatives()).double().sum()) * ranks()).round().long()

    def squared_distances(self) -> Tensor:
        """(N, P): the squared distance of positive pairs of unit rows, or else of their directions."""
        if self.unit:
            return 2 - 2 * self.positive_logits() * self.temperature
        queries, positives = F.normalize(self.queries, dim=-1), F.normalize(self.positives, dim=-1)
        return 2 - 2 * torch.einsum("nd,npd->np", queries, positives)

    def largest_logit(self) -> Tensor:
        """Scalar: the largest logit of the positives."""
        return self.positive_logits().amax()

    def _groups(self) -> tuple[Tensor, Tensor] | None:
        if self.query_groups is None:
            return None
        assert self.negative_groups is not None, "groups of queries and of negatives go together"
        return self.query_groups, self.negative_groups

    def _same_group(self, columns: Tensor) -> Tensor:
        """(N, E) bool: which of the columns (N, E) belong to the query's own group."""
        assert self.query_groups is not None
        assert self.negative_groups is not None
        columns = to_device(columns, self.negative_groups.device)
        return self.negative_groups[columns] == self.query_groups[:, None]


def _group_sizes(queries: Tensor, negatives: Tensor) -> Tensor:
    """(N,) int64: how many of the negatives (K,) are of each query's group (N,), in linear memory."""
    ordered = negatives.sort().values
    return torch.searchsorted(ordered, queries, right=True) - torch.searchsorted(ordered, queries)


@dataclass(frozen=True)
class Agreement:
    """N queries of this rank and the positives they should agree with, without negatives (BYOL, SimSiam).

    Args:
        queries: (N, D) unit rows.
        positives: (N, P, D) unit rows.
        weight: of this term in the sum over the method's terms.
    """

    penalty: ClassVar[float] = 0.0

    queries: Tensor
    positives: Tensor
    weight: float = 1.0

    def cosines(self) -> Tensor:
        """(N, P): q . p."""
        return torch.einsum("nd,npd->np", self.queries, self.positives)

    def squared_distances(self) -> Tensor:
        """(N, P): |q - p|^2 of the pairs."""
        return 2 - 2 * self.cosines()

    def largest_logit(self) -> Tensor:
        """Scalar: the largest cosine."""
        return self.cosines().amax()


@dataclass(frozen=True)
class TwoViews:
    """N images of this rank in two views, for losses on statistics of the batch (Barlow Twins, VICReg).

    Args:
        first, second: (N, D) raw rows, as the projector gives them.
        weight: of this term in the sum over the method's terms.
    """

    penalty: ClassVar[float] = 0.0

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
        a, b = (self._standardised(view) for view in (self.first, self.second))
        return mean_over_ranks(a.T @ b / len(a))

    def covariances(self) -> tuple[Tensor, Tensor]:
        """(D, D) of each view: the unbiased covariance of its coordinates over the images of all ranks."""
        images = len(self.first) * ranks()
        centred = [self._centred(view) for view in (self.first, self.second)]
        a, b = (mean_over_ranks(x.T @ x / len(x)) * (images / (images - 1)) for x in centred)
        return a, b

    def squared_distances(self) -> Tensor:
        """(N, 1): |a - b|^2 of the two views, as unit rows."""
        return 2 - 2 * torch.einsum("nd,npd->np", self.queries, self.positives)

    def largest_logit(self) -> Tensor:
        """Scalar: the largest coordinate."""
        return torch.maximum(self.first.abs().amax(), self.second.abs().amax())

    @classmethod
    def _standardised(cls, view: Tensor) -> Tensor:
        centred = cls._centred(view)
        return centred / (mean_over_ranks(centred.square().mean(0)) + EPSILON).sqrt()

    @staticmethod
    def _centred(view: Tensor) -> Tensor:
        view = view if view.dtype == torch.float64 else view.float()  # bfloat16 is too coarse for statistics
        return view - mean_over_ranks(view.mean(0))
