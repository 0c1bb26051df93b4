"""Negatives sampled from a batch (EqCo, section 2.3), and groups of queries with negatives in their image."""

import torch
from torch import Tensor

from cl.objective.batch import Batch
from cl.runtime.distributed import gather, global_rows, local_part, ranks

BLOCK = 2**22  # random numbers held at a time
NO_COLUMN = torch.iinfo(torch.int64).max  # a query's group that no column has


def check_negatives(negatives: int | None, candidates: int) -> None:
    """Raises ValueError if there are fewer `candidates` than the `negatives` that each query samples."""
    if negatives is not None and negatives > candidates:
        raise ValueError(f"negatives={negatives} exceeds the {candidates} of a batch; choose fewer, or null")


def sample_columns(n: int, count: int, generator: torch.Generator, *, width: int, shared: bool) -> Tensor:
    """(n, K) int64 on the CPU: distinct columns for each of this rank's images, none of the image's own.

    K is `count`, or the number of other images' columns if an analysis uses smaller batches. An image of any
    rank has `width` columns. If `shared`, all images sample the same places among the columns of others.
    """
    candidates = width * (n * ranks() - 1)
    count = min(count, candidates)
    if shared:
        places = torch.randperm(candidates, generator=generator)[:count].expand(n, count)
    else:
        places = sample_without_replacement(n, candidates, count, generator)
    own = width * global_rows(n)[:, None]
    return places + width * (places >= own)


def sample_without_replacement(n: int, candidates: int, count: int, generator: torch.Generator) -> Tensor:
    """(n, count) int64 on the CPU: for each of this rank's rows, `count` distinct numbers below `candidates`.

    Rows are independent. The work grows with the rows of all ranks times `candidates`; this suits EqCo's
    batches of hundreds of images.
    """
    blocks = torch.arange(n * ranks()).split(max(1, BLOCK // candidates))
    chosen = [torch.rand(len(block), candidates, generator=generator).topk(count).indices for block in blocks]
    return local_part(torch.cat(chosen))


def groups_of_queries(batch: Batch, per_image: int) -> Tensor | None:
    """(N E,): the group of each of an image's E queries, image-major; None if the data has no groups.

    For queries that also have negatives in their image, such as its other patches. These count only if the
    batch of all ranks has no other image of the group: NO_COLUMN then replaces the group.
    """
    groups = batch.row_groups()
    if groups is None:
        return None
    alone = (groups[:, None] == gather(groups)).sum(1) == 1
    return groups.masked_fill(alone, NO_COLUMN).repeat_interleave(per_image)
