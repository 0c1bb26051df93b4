"""Blocks of the matrix of logits, which never exists as a whole, and columns that queries select."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cl.runtime.machine import to_device

TILE = 1024  # side of the block of logits that exists at a time; 4 MiB in float32
GATHERED = 2**22  # numbers gathered at a time for per-query columns

Groups = tuple[Tensor, Tensor]  # (N,) of the queries, (K,) of the negatives


def check_columns(negatives: int, excluded: Tensor | None, selected: Tensor | None) -> None:
    """Raises ValueError if none of the `negatives` columns remain, or both kinds of columns are given."""
    if selected is not None:
        if excluded is not None:
            raise ValueError("give excluded or selected columns, not both")
        if selected.shape[1] == 0:
            raise ValueError("no negatives remain: `selected` does not have any columns")
        return
    left = negatives - (0 if excluded is None else excluded.shape[1])
    if left < 1:
        raise ValueError(f"no negatives remain: of {negatives}, {max(left, 0)} are left after exclusion")


def over_selected(
    reduce: Callable[[Tensor, Tensor, Tensor], Tensor],
    queries: Tensor,
    negatives: Tensor,
    selected: Tensor,
    temperature: float,
    groups: Groups | None,
) -> Tensor:
    """Per-query columns, a few rows at a time; negatives are gathered again in the backward pass.

    Args:
        reduce: (logits (n, S), which of them do not count (n, S), row numbers (n,)) to (n,).
    """

    def block(q: Tensor, k: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
        logits = torch.einsum("nd,nsd->ns", q, k[columns]).div(temperature)
        absent = columns < 0  # (n, S)
        if groups is not None:
            absent = absent | (groups[0][rows, None] == groups[1][columns])
        return reduce(logits, absent, rows)

    size = max(1, GATHERED // (selected.shape[1] * queries.shape[1]))
    rows = torch.arange(len(queries), device=queries.device).split(size)
    blocks = zip(queries.split(size), selected.split(size), rows, strict=True)
    return torch.cat(
        [checkpoint(block, q, negatives, columns, r, use_reentrant=False) for q, columns, r in blocks]
    )


class Tile(NamedTuple):
    """One block of the matrix of logits, and which of its entries do not count.

    excluded: flat positions. groups: those of its rows and of its columns.
    """

    rows: slice
    columns: slice
    excluded: Tensor | None
    groups: Groups | None

    def fill(self, x: Tensor, value: float) -> Tensor:
        """Overwrite what does not count in the block `x` (rows, columns), in place."""
        if self.excluded is not None:
            x.view(-1).index_fill_(0, self.excluded, value)
        if self.groups is not None:
            x.masked_fill_(self.groups[0][:, None] == self.groups[1], value)
        return x


def tiles_of(
    n: int, k: int, excluded: Tensor | None, groups: Groups | None, device: torch.device
) -> list[Tile]:
    """The blocks of an (n, k) matrix, row by row."""
    starts = [(row, column) for row in range(0, n, TILE) for column in range(0, k, TILE)]
    positions = [None] * len(starts) if excluded is None else _positions(n, k, excluded, device)
    tiles = []
    for (row, column), where in zip(starts, positions, strict=True):
        rows, columns = slice(row, min(row + TILE, n)), slice(column, min(column + TILE, k))
        inside = None if groups is None else (groups[0][rows], groups[1][columns])
        tiles.append(Tile(rows, columns, where, inside))
    return tiles


def _positions(n: int, k: int, excluded: Tensor, device: torch.device) -> list[Tensor | None]:
    """The flat positions of the excluded columns in each block, sorted by block once: one fill per block."""
    across, excluded = math.ceil(k / TILE), excluded.cpu()
    rows = torch.arange(n)[:, None].expand_as(excluded).reshape(-1)
    columns = excluded.reshape(-1)
    tile, order = ((rows // TILE) * across + columns // TILE).sort()
    rows, columns = rows[order], columns[order]
    width = (k - columns // TILE * TILE).clamp(max=TILE)
    counts = torch.bincount(tile, minlength=math.ceil(n / TILE) * across).tolist()
    positions = to_device((rows % TILE) * width + columns % TILE, device)
    return [where if len(where) else None for where in positions.split(counts)]


def buffer_of(queries: Tensor, negatives: Tensor) -> Tensor:
    """Memory for the logits of one block."""
    return queries.new_empty(min(TILE, len(queries)) * min(TILE, len(negatives)))
