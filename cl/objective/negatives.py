"""Negatives: rows that queries are contrasted with, and which of them count for each query."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from cl.objective.batch import Batch
from cl.runtime.distributed import gather, global_rows, ranks
from cl.runtime.machine import to_device

Groups = tuple[Tensor, Tensor]  # (N,) of the queries, (K,) of the rows


class Mask(NamedTuple):
    """Rows that do not count because of the images that they and the query come from.

    queries, rows: (N,) and (K,) int64, numbers of groups or values.
    left_out: torch.eq where rows of the query's own number do not count, torch.ne where only these count.
    """

    queries: Tensor
    rows: Tensor
    left_out: Callable[..., Tensor]

    def of_columns(self, columns: Tensor, queries: Tensor | slice = slice(None)) -> Tensor:
        """(N, E) bool: which of the columns (N, E) of these queries do not count."""
        return self.left_out(self.rows[columns], self.queries[queries, None])


@dataclass(frozen=True)
class Negatives:
    """K rows shared by N queries; a query counts all columns, all but the excluded, or only the selected.

    rows: (K, D): a queue, or the keys of all ranks.
    excluded: (N, E) int64, columns that do not count for a query; distinct in each row. Keep indices that
        were created on the CPU there: the log-partition checks their symmetry without a device sync.
    selected: (N, S) int64, the only columns that count for a query, each as often as it occurs; excludes
        `excluded`.
    groups: (N,) and (K,) int64, of queries and rows: a row of the query's group never counts. None where the
        data has no groups.
    within: values (N,) and (K,) int64: only rows of the query's value count. None: all do.
    unit: promises that all queries and rows have norm at most 1; else the log-partition finds a bound.
    padded: whether `selected` is padded with -1, because queries have different numbers of columns.

    Raises:
        ValueError: no columns remain after exclusion or selection.
    """

    rows: Tensor
    excluded: Tensor | None = None
    selected: Tensor | None = None
    groups: Groups | None = None
    within: Groups | None = None
    unit: bool = True
    padded: bool = False

    def __post_init__(self) -> None:
        assert self.excluded is None or self.selected is None, "excluded or selected columns, not both"
        columns = len(self.rows) - self._excluded_count if self.selected is None else self.selected.shape[1]
        if columns <= 0:
            raise ValueError(f"no negatives remain: each query leaves out all {len(self.rows)} rows")

    @classmethod
    def of_other_images(
        cls, rows: Tensor, batch: Batch, selected: Tensor | None = None, *, queries: int = 1
    ) -> "Negatives":
        """Embeddings of the batch of all ranks; a query counts those of other images that may be negatives.

        Args:
            rows: (W N R, D), R embeddings per image, image-major.
            selected: (N queries, S) int64, the only columns that count; they must be of other images.
            queries: how many queries each image of this rank has, image-major.
        """
        images = len(batch.positions)
        per_image = len(rows) // (images * ranks())
        groups = batch.row_groups(per_image)
        excluded = None
        if selected is None:
            own_columns = per_image * global_rows(images)[:, None] + torch.arange(per_image)  # (N, R)
            excluded = own_columns.repeat_interleave(queries, 0)
        # One tensor for both sides shows the log-partition that they are equal.
        query_groups = groups if queries == per_image else batch.row_groups(queries)
        within = batch.row_within(per_image)
        query_within = within if queries == per_image else batch.row_within(queries)
        pair = paired(query_groups, gather_groups(groups))
        return cls(rows, excluded, selected, pair, paired(query_within, gather_groups(within)))

    @property
    def masks(self) -> tuple[Mask, ...]:
        """What the images that queries and rows come from leave out."""
        given = (self.groups, torch.eq), (self.within, torch.ne)
        return tuple(Mask(*pair, left_out) for pair, left_out in given if pair)

    @property
    def can_be_empty(self) -> bool:
        """Whether groups, values or padding can leave a query without negatives."""
        return bool(self.masks) or self.padded

    def counts(self, queries: Tensor) -> Tensor:
        """(N,): how many rows count for each of the queries (N, D), in their dtype."""
        if self.selected is not None:
            return self._counted(self.selected).sum(1).to(queries.dtype)
        counts = queries.new_full((len(queries),), len(self.rows))
        if not self.masks:
            return counts - self._excluded_count
        if self.within is not None:
            counts = _equal_rows(*self.within).to(queries.dtype)
        if self.groups is not None:
            counts = counts - _equal_rows(*_pairs(self.groups, self.within))
        return counts if self.excluded is None else counts - self._counted(self.excluded).sum(1)

    @property
    def _excluded_count(self) -> int:
        return 0 if self.excluded is None else self.excluded.shape[1]

    def _counted(self, columns: Tensor) -> Tensor:
        """(N, E) bool: which of the columns (N, E), -1 for none, the images of their rows let count."""
        columns = to_device(columns, self.rows.device)
        counted = columns >= 0
        for mask in self.masks:
            counted &= ~mask.of_columns(columns)
        return counted


def paired(of_queries: Tensor | None, of_rows: Tensor | None) -> Groups | None:
    """Groups or values of queries and of rows; None where the data, and so the queries, have none."""
    if of_queries is None:
        return None
    assert of_rows is not None, "groups of queries and of rows go together"
    return of_queries, of_rows


def gather_groups(groups: Tensor | None) -> Tensor | None:
    """The groups or values of all ranks' rows, where the data has them."""
    return None if groups is None else gather(groups)


def _equal_rows(of_queries: Tensor, of_rows: Tensor) -> Tensor:
    """(N,): how many rows have the number of each query; by bisection, in memory linear in N and K."""
    ordered = of_rows.sort().values
    above = torch.searchsorted(ordered, of_queries, right=True)
    return above - torch.searchsorted(ordered, of_queries)


def _pairs(groups: Groups, within: Groups | None) -> Groups:
    """One number for a group and a value: both are below 2**31, or that of no image, which equals none."""
    if within is None:
        return groups
    queries, rows = (2**32 * group + value for group, value in zip(groups, within, strict=True))
    return queries, rows


def with_fixed_temperature(
    queries: Tensor, negatives: Negatives, temperature: float | Tensor
) -> tuple[Tensor, Negatives, float]:
    """The same logits with the temperature as a number; a tensor's gradient flows through both sides.

    Each side is multiplied by 1, whose gradient to the temperature is half of the logits'.
    """
    if not isinstance(temperature, Tensor):
        return queries, negatives, temperature
    one = (temperature.detach() / temperature).sqrt()
    scaled = queries * one
    rows = scaled if negatives.rows is queries else negatives.rows * one  # symmetry must remain visible
    return scaled, replace(negatives, rows=rows), temperature.item()
