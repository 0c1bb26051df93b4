"""A queue of embeddings from earlier steps."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cl.runtime.machine import to_device

NO_GROUP = torch.iinfo(torch.int64).min  # of the random initial rows: equals no image's group


class Queue(nn.Module):
    """A ring of the newest embeddings, initially random unit rows.

    rows: (size, D).
    groups: (size,) int64, the group of each row's image, as in `Batch.row_groups`.
    within: (size,) int64, its value as in `Batch.within`; None where all rows are negatives.
    oldest: scalar, the row to be replaced next.
    """

    def __init__(self, size: int, width: int, *, within: bool = False) -> None:
        super().__init__()
        self.rows = nn.Buffer(F.normalize(torch.randn(size, width), dim=1))
        self.groups = nn.Buffer(torch.full((size,), NO_GROUP))
        self.within = nn.Buffer(torch.full((size,), NO_GROUP)) if within else None
        self.oldest = nn.Buffer(torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def enqueue(
        self, new: Tensor, groups: Tensor | None, generator: torch.Generator, within: Tensor | None = None
    ) -> None:
        """Replace the oldest rows by `new` (N, D) of the given groups (N,) and values of `within` (N,).

        If `new` has more rows than the queue, a random subset is enqueued (EqCo, section 2.3).
        """
        size = len(self.rows)
        if len(new) > size:
            chosen = to_device(torch.randperm(len(new), generator=generator)[:size], new.device)
            new = new[chosen]
            groups, within = (None if each is None else each[chosen] for each in (groups, within))
        replaced = (self.oldest + torch.arange(len(new), device=new.device)) % size
        self.rows[replaced] = new.to(self.rows.dtype)
        if groups is not None:
            self.groups[replaced] = groups
        if self.within is not None and within is not None:
            self.within[replaced] = within
        self.oldest.copy_((self.oldest + len(new)) % size)
