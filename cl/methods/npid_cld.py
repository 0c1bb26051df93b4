"""NPID + CLD: images against a memory bank, and the views of a batch against each other's clusters."""

from typing import ClassVar, Literal

from cl.methods._shared.cld import ClusterConfig, ClusterMethod
from cl.methods._shared.memory_bank import BankConfig, MemoryBankMethod
from cl.networks.passes import in_passes
from cl.objective.batch import Batch
from cl.objective.terms import Contrast


class Config(ClusterConfig, BankConfig):
    """NPID's parameters, and the clusters'."""

    gives: ClassVar = {"contrasts"}  # the loss between clusters has no normalizer
    kind: Literal["npid_cld"]


class Method(ClusterMethod, MemoryBankMethod):
    """Wang et al. 2021, eq. 4, on NPID: the mean over the views, plus lambda times the clusters' loss."""

    def forward(self, batch: Batch) -> list[Contrast]:
        """The contrasts of NPID, and two between the first two views and each other's clusters."""
        both = in_passes(self.embed_twice, batch.views, separate=2)  # (N, 2, D) each
        queries = [x[:, 0] for x in both]
        self.remember_views(queries, batch)
        return self.with_clusters(self.against_bank(queries, batch), both)
