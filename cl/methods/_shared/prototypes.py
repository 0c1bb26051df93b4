"""Methods that predict one view's code over prototypes from another view (SwAV, DINO)."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cl.methods import BaseMethod, MethodConfig, Setup, pairs
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from cl.runtime.distributed import gather


class PrototypeConfig(MethodConfig):
    """`frozen_epochs`: the optimizer leaves out the prototypes in these first epochs."""

    needs: ClassVar = {"decoupled"}  # the positive is among the prototypes
    prototypes: int = Field(gt=1)
    frozen_epochs: int = Field(ge=0)

    def check(self, batch_size: int, epochs: float) -> None:
        """There must be epochs that train the prototypes, except in a trial of one epoch."""
        if self.frozen_epochs >= epochs > 1:
            raise ValueError(
                f"frozen_epochs={self.frozen_epochs} leaves none of the {epochs:g} epochs to train the "
                "prototypes; choose fewer"
            )


class PrototypeMethod(BaseMethod):
    """The cross-entropy between a code of one view and the softmax over prototypes of another.

    -sum_k q_k log softmax_k(z . c_k / temperature) is the decoupled loss: its positive is the mean prototype
    under the code, sum_k q_k c_k, and its negatives are all prototypes. Images are not negatives of each
    other, so groups of images do not matter.

    prototypes: (K, D).
    epoch: scalar int64, the current epoch.
    """

    negatives_are_images = False

    def __init__(self, config: PrototypeConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.frozen_epochs = config.frozen_epochs
        width = config.projector.out
        self.prototypes = nn.Parameter(F.normalize(torch.randn(config.prototypes, width), dim=1))
        self.epoch = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.begin_epoch(0)
        self.register_load_state_dict_post_hook(lambda method, _: method.begin_epoch(int(method.epoch)))

    def begin_epoch(self, epoch: int) -> None:
        """Record the epoch, so that a resumed run continues from it."""
        self.epoch.fill_(epoch)
        self._frozen = epoch < self.frozen_epochs  # reading `epoch` in each step would wait for the device

    def trained_prototypes(self) -> Tensor:
        """(K, D); while frozen, without a gradient: with one of zero, optimizers would decay and count."""
        return self.prototypes.detach() if self._frozen else self.prototypes

    def contrasts(self, embeddings: list[Tensor], means: list[Tensor], prototypes: Tensor) -> list[Contrast]:
        """A contrast with all prototypes for every view, V x (N, D), and every code of another view.

        means: for each of the first two views, (N, D), the mean prototype under its code.
        """
        negatives = Negatives(prototypes)
        return [self.contrast(embeddings[a], means[b][:, None], negatives) for a, b in pairs(len(embeddings))]


def sinkhorn(logits: Tensor, counted: Tensor, iterations: int) -> Tensor:
    """Codes that use all prototypes equally: rows that sum to 1, columns nearly to the same (SwAV, eq. 3).

    Sinkhorn and Knopp's iterations in logarithms, over the rows of all ranks.

    Args:
        logits: (V, n, K) as the result, for each of V views this rank's rows of scores / epsilon.
        counted: (n,) bool, the rows that enter the sums over columns.
    """
    for _ in range(iterations):
        local = logits.masked_fill(~counted[:, None], -torch.inf).logsumexp(1)  # (V, K)
        logits = logits - gather(local[None]).logsumexp(0)[:, None]
        logits = logits - logits.logsumexp(2, keepdim=True)
    return logits.exp()
