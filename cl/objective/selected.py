"""Logits of the columns that each query selects for itself."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cl.objective.blocks import AREA
from cl.objective.negatives import Negatives

GATHERED = 2**22  # numbers gathered at a time on a CPU; on a GPU, AREA


def over_selected(
    reduce: Callable[[Tensor, Tensor, Tensor], Tensor],
    queries: Tensor,
    negatives: Negatives,
    temperature: float,
) -> Tensor:
    """(N,): `reduce` of each query's selected logits, a few queries at a time.

    The selected rows are gathered again in the backward pass. `reduce` takes the logits (n, S), the mask of
    those that do not count (n, S) and the numbers of the queries (n,).
    """
    selected, masks = negatives.selected, negatives.masks
    assert selected is not None

    def block(q: Tensor, rows: Tensor, columns: Tensor, numbers: Tensor) -> Tensor:
        logits = torch.einsum("nd,nsd->ns", q, rows[columns]).div(temperature)
        absent = columns < 0  # (n, S)
        for mask in masks:
            absent = absent | mask.of_columns(columns, numbers)
        return reduce(logits, absent, numbers)

    area = GATHERED if queries.device.type == "cpu" else AREA
    size = max(1, area // (selected.shape[1] * queries.shape[1]))
    numbers = torch.arange(len(queries), device=queries.device).split(size)
    parts = zip(queries.split(size), selected.split(size), numbers, strict=True)
    return torch.cat(
        [checkpoint(block, q, negatives.rows, columns, n, use_reentrant=False) for q, columns, n in parts]
    )
