"""CMC: an image's lightness is contrasted with a memory of colours, and its colour with one of lightness."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from cl.methods import BaseMethod, Setup
from cl.methods._shared.memory_bank import BankConfig, against_banks
from cl.networks import heads
from cl.networks.bank import Bank
from cl.networks.passes import in_passes, l2_normalize
from cl.objective.batch import Batch
from cl.objective.terms import Contrast


class Config(BankConfig):
    """Tian et al. 2020 with two views of an image, its lightness and its colour; NCE or a softmax.

    `projector`: each network has one. `scale`: the total is the mean over the terms, so 2 gives the paper's
    sum over the two directions.
    """

    least_views: ClassVar = 1
    large: ClassVar = 1  # the first view updates the banks
    needs_backbone: ClassVar = {"two networks"}
    kind: Literal["cmc"]

    @property
    def embedding_width(self) -> int:
        return 2 * self.projector.out

    def build_projector(self, features: int) -> nn.Sequential:
        return heads.SideBySide(self.projector, features)


class Method(BaseMethod):
    """Each network has a bank; its embeddings are the queries for the other network's bank."""

    config: Config
    _new: tuple[Tensor, Tensor, Tensor | None]

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        width = config.projector.out
        self.lightness = Bank(setup.images, width, config.bank_momentum)
        self.colour = Bank(setup.images, width, config.bank_momentum)

    def forward(self, batch: Batch) -> list[Contrast]:
        """For each view of N images, a contrast of lightness with the bank of colour, and one of colour."""
        views = [view.unbind(1) for view in in_passes(self._encode, batch.views, separate=1)]
        self._new = batch.positions, torch.stack(views[0]).detach(), batch.row_groups()
        lightness, colour = zip(*views, strict=True)
        pairs = [(lightness, self.colour), (colour, self.lightness)]
        return against_banks(self, self.config, batch, pairs)

    def after_step(self, progress: float) -> None:
        positions, new, groups = self._new
        for bank, embeddings in zip((self.lightness, self.colour), new, strict=True):
            bank.update(positions, embeddings, groups)

    def _encode(self, images: Tensor) -> Tensor:
        """(N, 2, D) unit rows: of lightness, and of colour."""
        return l2_normalize(self.projector(self.backbone(images)).unflatten(1, (2, -1)))
