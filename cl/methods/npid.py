"""NPID (InstDisc): every image is a class, and its weight vector is a memory of its embeddings."""

from typing import ClassVar, Literal

from cl.methods._shared.instance_discrimination import InstanceDiscrimination
from cl.methods._shared.memory_bank import BankConfig
from cl.networks.passes import in_passes
from cl.objective.batch import Batch
from cl.objective.terms import Contrast


class Config(BankConfig):
    """Wu et al. 2018: NCE with sampled negatives (section 3.2), InfoNCE with `negatives: null`.

    Without the proximal term of the paper (eq. 10), which the authors' code lacks.
    """

    least_views: ClassVar[int] = 1
    kind: Literal["npid"]


class Method(InstanceDiscrimination):
    """Any number of views: each has a term, and the first two update the bank."""

    def forward(self, batch: Batch) -> list[Contrast]:
        """A contrast of N queries per view."""
        return self.discriminate(in_passes(self.embed, batch.views, separate=2), batch)
