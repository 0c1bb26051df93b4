"""NPID (InstDisc): every image is a class, and its weight vector is a memory of its embeddings."""

from typing import ClassVar, Literal

from cl.methods._shared.memory_bank import BankConfig, MemoryBankMethod
from cl.networks.passes import in_passes
from cl.objective.batch import Batch
from cl.objective.terms import Contrast


class Config(BankConfig):
    """Wu et al. 2018: NCE with sampled negatives (section 3.2), InfoNCE with `negatives: null`.

    Without the proximal term of the paper (eq. 10), which the authors' code lacks.
    """

    least_views: ClassVar = 1
    kind: Literal["npid"]


class Method(MemoryBankMethod):
    """Each view of an image against the bank's row of the image and rows of others (section 3.1).

    Any number of views: all have the same negatives, and the first two update the bank.
    """

    def forward(self, batch: Batch) -> list[Contrast]:
        """A contrast of N queries per view."""
        queries = in_passes(self.embed, batch.views, separate=2)  # (N, D) each
        self.remember_views(queries, batch)
        return self.against_bank(queries, batch)
