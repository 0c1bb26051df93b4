"""NPID (InstDisc): every image is a class of its own, and its weight vector is a memory of its embeddings."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cl.batch import Batch
from cl.contrast import Contrast
from cl.methods import Setup
from cl.methods._shared.memory import BankConfig, Remembering
from cl.networks.passes import in_passes, unit


class Config(BankConfig):
    """Wu et al. 2018: loss=nce with sampled negatives (section 3.2), loss=infonce with `negatives: null`.

    proximal: lambda of eq. 10, times |z - v|^2 between an embedding and its row; 0 in the authors' code.
    """

    least_views: ClassVar[int] = 1
    kind: Literal["npid"]
    proximal: float = Field(ge=0)


class Method(Remembering):
    """Each view of an image against the image's row of the bank and the rows of others (section 3.1)."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.proximal = config.proximal

    def forward(self, batch: Batch) -> list[Contrast]:
        """A contrast of N queries per view; all views of an image have the same negatives."""
        queries = in_passes(self.embed, batch.views, separate=2)  # (N, D) each
        return self.discriminate(queries, batch)

    def discriminate(self, queries: list[Tensor], batch: Batch) -> list[Contrast]:
        """The contrasts of one or more views (N, D) with the bank.

        The row moves towards the mean of the first two views, as a unit row: once per image and step.
        """
        self.remember(unit(torch.stack(queries[:2]).mean(0)), batch)
        contrasts = self.against_bank(queries, batch)
        return [self._with_penalty(contrast) for contrast in contrasts] if self.proximal else contrasts

    def _with_penalty(self, contrast: Contrast) -> Contrast:
        distances = (contrast.queries - contrast.positives[:, 0]).square().sum(1)  # (N,)
        return replace(contrast, penalty=self.proximal * contrast.mean_over_queries(distances))
