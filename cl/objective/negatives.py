"""Negatives: rows that queries are contrasted with, and which of them count for each query."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cl.objective.batch import Batch
from cl.runtime.distributed import gather, global_rows, ranks
from cl.runtime.machine import to_device

Groups = tuple[Tensor, Tensor]  # (N,) of the queries, (K,) of the rows


@dataclass(frozen=True)
class Negatives:
    """K rows shared by N queries; a query counts all columns, all but the excluded, or only the selected.

    Args:
        rows: (K, D): a queue, or the keys of all ranks.
        excluded: (N, E) int64, columns that do not count for a query; distinct in each row. Keep indices
            that were created on the CPU there: the log-partition checks their symmetry without a device sync.
        selected: (N, S) int64, the only columns that count for a query, each as often as it occurs; excludes
            `excluded`.
        query_groups, row_groups: (N,) and (K,) int64: a row of the query's group never counts. If
            `query_groups` is None, the data has no groups, and `row_groups` is ignored.
        unit: promises that all queries and rows have norm at most 1; else the log-partition finds a bound.
        padded: whether `selected` is padded with -1, because queries have different numbers of columns.

    Raises:
        ValueError: no columns remain after exclusion or selection.
    """

    rows: Tensor
    excluded: Tensor | None = None
    selected: Tensor | None = None
    query_groups: Tensor | None = None
    row_groups: Tensor | None = None
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
        """Embeddings of the batch of all ranks; a query counts the rows of other images and other groups.

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
        return cls(rows, excluded, selected, query_groups, gather_groups(groups))

    @property
    def groups(self) -> Groups | None:
        """Of queries and rows; None where the data has no groups."""
        if self.query_groups is None:
            return None
        assert self.row_groups is not None, "groups of queries and of rows go together"
        return self.query_groups, self.row_groups

    @property
    def can_be_empty(self) -> bool:
        """Whether groups or padding can leave a query without negatives."""
        return self.query_groups is not None or self.padded

    def counts(self, queries: Tensor) -> Tensor:
        """(N,): how many rows count for each of the queries (N, D), in their dtype."""
        if self.selected is not None:
            counted = to_device(self.selected, queries.device) >= 0
            if self.groups is not None:
                counted &= ~self._same_group(self.selected)
            return counted.sum(1).to(queries.dtype)
        counts = queries.new_full((len(queries),), len(self.rows) - self._excluded_count)
        if self.groups is None:
            return counts
        excluded_too = 0 if self.excluded is None else self._same_group(self.excluded).sum(1)
        of_queries, of_rows = self.groups
        ordered = of_rows.sort().values  # counting by bisection takes memory linear in N and K
        above = torch.searchsorted(ordered, of_queries, right=True)
        return counts - (above - torch.searchsorted(ordered, of_queries)) + excluded_too

    @property
    def _excluded_count(self) -> int:
        return 0 if self.excluded is None else self.excluded.shape[1]

    def _same_group(self, columns: Tensor) -> Tensor:
        """(N, E) bool: which of the columns (N, E) belong to the query's own group."""
        assert self.groups is not None
        of_queries, of_rows = self.groups
        return of_rows[to_device(columns, of_rows.device)] == of_queries[:, None]


def gather_groups(groups: Tensor | None) -> Tensor | None:
    """The groups of all ranks' rows, where the data has groups."""
    return None if groups is None else gather(groups)


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
