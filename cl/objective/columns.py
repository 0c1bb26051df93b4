"""Columns that queries exclude or select."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cl.objective.blocks import AREA, Groups
from cl.objective.ring import Sharded

GATHERED = 2**22  # numbers gathered at a time for per-query columns on a CPU; AREA on a GPU


def check_columns(negatives: Tensor | Sharded, excluded: Tensor | None, selected: Tensor | None) -> None:
    """Raises ValueError if no columns remain, or both kinds of columns are given."""
    if selected is not None:
        if excluded is not None:
            raise ValueError("give excluded or selected columns, not both")
        if selected.shape[1] == 0:
            raise ValueError("no negatives remain: `selected` does not have any columns")
        assert isinstance(negatives, Tensor), "columns are selected among gathered rows"
        return
    left = len(negatives) - (0 if excluded is None else excluded.shape[1])
    if left < 1:
        raise ValueError(f"no negatives remain: of {len(negatives)}, {max(left, 0)} are left after exclusion")


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

    numbers = GATHERED if queries.device.type == "cpu" else AREA
    size = max(1, numbers // (selected.shape[1] * queries.shape[1]))
    rows = torch.arange(len(queries), device=queries.device).split(size)
    blocks = zip(queries.split(size), selected.split(size), rows, strict=True)
    return torch.cat(
        [checkpoint(block, q, negatives, columns, r, use_reentrant=False) for q, columns, r in blocks]
    )
