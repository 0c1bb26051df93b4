"""Instance discrimination with a memory bank: NPID, and CLD on it."""

import torch
from torch import Tensor

from cl.methods._shared.memory_bank import MemoryBankMethod
from cl.networks.passes import l2_normalize
from cl.objective.batch import Batch
from cl.objective.terms import Contrast


class InstanceDiscrimination(MemoryBankMethod):
    """Each view of an image against the bank's row of the image and rows of others (section 3.1)."""

    def discriminate(self, queries: list[Tensor], batch: Batch) -> list[Contrast]:
        """A contrast of N queries per view (N, D); all views of an image have the same negatives.

        Once per step, the image's row moves towards the normalised mean of the first two views.
        """
        self.remember(l2_normalize(torch.stack(queries[:2]).mean(0)), batch)
        return self.against_bank(queries, batch)
