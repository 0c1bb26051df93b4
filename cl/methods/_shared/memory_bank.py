"""Methods whose negatives come from a memory bank."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from cl.methods import BaseMethod, MethodConfig, Setup
from cl.networks.bank import Bank
from cl.networks.passes import l2_normalize
from cl.objective.batch import Batch
from cl.objective.log_partition import log_partition
from cl.objective.negatives import Negatives, paired
from cl.objective.terms import Contrast


class BankConfig(MethodConfig):
    """A method with a memory bank.

    negatives: the number of rows drawn for each image, with replacement; null: the rows of all other images.
    own: whether an image's own row may be drawn, if any are. Where the data has groups, it never counts.
    bank_momentum: the rows' momentum; 0 keeps only the newest embedding.
    """

    gives: ClassVar = {"contrasts", "normalizer"}
    negatives: int | None = Field(gt=0)
    own: bool
    bank_momentum: float = Field(ge=0, lt=1)


class MemoryBankMethod(BaseMethod):
    """A method with one memory bank, which is updated after the step (`remember`)."""

    config: BankConfig
    _new: tuple[Tensor, Tensor, Tensor | None]

    def __init__(self, config: BankConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.bank = Bank(setup.images, config.projector.out, config.bank_momentum)

    def against_bank(self, queries: list[Tensor], batch: Batch) -> list[Contrast]:
        """A contrast of each (N, D) of `queries` with the image's row and with shared negatives."""
        return against_banks(self, self.config, batch, [(queries, self.bank)])

    def remember(self, embeddings: Tensor, batch: Batch) -> None:
        """Update the bank by these embeddings (N, D) after the step."""
        self._new = batch.positions, embeddings.detach(), batch.row_groups()

    def remember_views(self, queries: list[Tensor], batch: Batch) -> None:
        """Update the bank by the normalised mean of the first two views (N, D) after the step."""
        self.remember(l2_normalize(torch.stack(queries[:2]).mean(0)), batch)

    def after_step(self, progress: float) -> None:
        """Update each image's row once, after the step has used the old row for its logits."""
        self.bank.update(*self._new)


def against_banks(
    method: BaseMethod, config: BankConfig, batch: Batch, pairs: Sequence[tuple[Sequence[Tensor], Bank]]
) -> list[Contrast]:
    """For each of the `pairs`, contrasts of queries (N, D), one per image, with a bank.

    The image's row is the positive; all contrasts have the same images as negatives.
    """
    own, groups, selected = batch.positions[:, None], batch.row_groups(), None
    if config.negatives is not None:
        now, following = (method.generator("negatives", later) for later in (0, 1))
        bank = pairs[0][1]
        selected = bank.sample(batch.positions, config.negatives, now, following, own=config.own)  # (N, K)
    excluded = own if selected is None else None
    contrasts = []
    for queries, bank in pairs:
        negatives = Negatives(bank.rows, excluded, selected, paired(groups, bank.groups))
        of_bank = [method.contrast(q, bank.rows[own], negatives, bank.log_normalizer) for q in queries]
        _estimate_normalizer(bank, of_bank)  # fills the buffer that the contrasts share
        contrasts += of_bank
    return contrasts


@torch.no_grad()
def _estimate_normalizer(bank: Bank, contrasts: list[Contrast]) -> None:
    """In the first step, estimate the normalizer from the positives and negatives of all ranks (InstDisc)."""
    if bank.has_normalizer():
        return
    sums, counts = [], []
    with torch.autocast(bank.rows.device.type, enabled=False):
        for contrast in contrasts:
            negative = log_partition(contrast.queries, contrast.negatives, contrast.temperature)
            positive = contrast.positive_logits()  # (N, P)
            sums.append(torch.cat([negative[:, None], positive], 1).logsumexp(1))
            counts.append(contrast.negative_counts + positive.shape[1])
        bank.estimate_normalizer(torch.cat(sums), torch.cat(counts))
