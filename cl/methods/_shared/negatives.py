"""Negatives that queries sample from a batch (EqCo, section 2.3)."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cl.runtime.distributed import local_part, ranks

if TYPE_CHECKING:
    from cl.config import Params

BLOCK = 2**22  # random numbers held at a time


def check_negatives(negatives: int | None, candidates: int, params: "Params") -> None:
    """Raises ValueError if a batch has fewer `candidates` than `method.negatives` asks for."""
    if negatives is not None and negatives > candidates:
        raise ValueError(
            f"method.negatives={negatives} exceeds the {candidates} negatives that each query has with "
            f"optim.batch_size={params.optim.batch_size}; choose fewer, or null for all"
        )


def sample_without_replacement(n: int, candidates: int, count: int, generator: torch.Generator) -> Tensor:
    """(n, count) int64 on the CPU: for each of this rank's rows, `count` distinct numbers below `candidates`.

    Rows are independent. Work grows with the rows of all ranks times `candidates`: meant for the batches of
    hundreds of images that EqCo samples from.
    """
    blocks = torch.arange(n * ranks()).split(max(1, BLOCK // candidates))
    chosen = [torch.rand(len(block), candidates, generator=generator).topk(count).indices for block in blocks]
    return local_part(torch.cat(chosen))


def skip_own_columns(positions: Tensor, own: Tensor, width: int = 1) -> Tensor:
    """Positions among the columns of other images, as positions among all columns.

    Args:
        positions: (N, S).
        own: (N,), the first of the `width` columns that belong to each query's own image.
    """
    return positions + width * (positions >= own[:, None])
