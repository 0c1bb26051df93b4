"""Instance discrimination with a memory bank: NPID, and CLD on it."""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from cl.methods import Setup
from cl.methods._shared.memory_bank import BankConfig, MemoryBankMethod
from cl.networks.passes import l2_normalize
from cl.objective.batch import Batch
from cl.objective.terms import Contrast


class InstanceDiscriminationConfig(BankConfig):
    """`proximal`: lambda of Wu et al. 2018, eq. 10, times |z - v|^2 between an embedding and its row."""

    proximal: float = Field(ge=0)


class InstanceDiscrimination(MemoryBankMethod):
    """Each view of an image against the bank's row of the image and rows of others (section 3.1)."""

    def __init__(self, config: InstanceDiscriminationConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.proximal = config.proximal

    def discriminate(self, queries: list[Tensor], batch: Batch) -> list[Contrast]:
        """A contrast of N queries per view (N, D); all views of an image have the same negatives.

        Once per step, the image's row moves towards the normalised mean of the first two views.
        """
        self.remember(l2_normalize(torch.stack(queries[:2]).mean(0)), batch)
        contrasts = self.against_bank(queries, batch)
        return [self._with_penalty(contrast) for contrast in contrasts] if self.proximal else contrasts

    def _with_penalty(self, contrast: Contrast) -> Contrast:
        distances = (contrast.queries - contrast.positives[:, 0]).square().sum(1)  # (N,)
        return replace(contrast, penalty=self.proximal * contrast.mean_over_queries(distances))
