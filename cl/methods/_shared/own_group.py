"""Groups of queries whose own image has negatives too, such as its other patches."""

import torch
from torch import Tensor

from cl.objective.batch import Batch
from cl.runtime.distributed import gather

NO_COLUMN = torch.iinfo(torch.int64).max  # as the group of a query: equals no column's


def groups_of_queries(batch: Batch, per_image: int) -> Tensor | None:
    """(N E,): the group of each of an image's E queries, image-major; None if the data has no groups.

    An image that is alone of its group in the batch of all ranks gets one that no column has, so that its own
    columns count. Otherwise they are left out with those of the group's other images.
    """
    groups = batch.row_groups()
    if groups is None:
        return None
    alone = (groups[:, None] == gather(groups)).sum(1) == 1
    return groups.masked_fill(alone, NO_COLUMN).repeat_interleave(per_image)
