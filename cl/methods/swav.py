"""SwAV: predict the cluster code of one view from another; codes share the batch equally among prototypes."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from cl.methods import Setup
from cl.methods._shared.prototypes import PrototypeConfig, PrototypeMethod, sinkhorn
from cl.networks.passes import in_passes, l2_normalize
from cl.networks.queue import Queue
from cl.objective.batch import Batch
from cl.objective.terms import Contrast
from cl.runtime.distributed import gather, rank, ranks


class Config(PrototypeConfig):
    """`epsilon` is the temperature of the codes, `iterations` the number of Sinkhorn-Knopp iterations.

    queue: the number of earlier embeddings of each of the first two views whose codes are computed together
        with the batch's; null for none.
    queue_epoch: the first epoch that uses the queue, counting from 0; null: 0.
    """

    kind: Literal["swav"]
    epsilon: float = Field(gt=0)
    iterations: int = Field(gt=0)
    queue: int | None = Field(gt=0)
    queue_epoch: int | None = Field(ge=0)

    def check(self, batch_size: int, epochs: float) -> None:
        super().check(batch_size, epochs)
        if self.queue_epoch and self.queue_epoch >= epochs > 1:
            raise ValueError(
                f"queue_epoch={self.queue_epoch} leaves none of the {epochs:g} epochs to the queue; choose "
                "an earlier one, or null for queue and queue_epoch"
            )


class Method(PrototypeMethod):
    """Algorithm 1 of SwAV, with codes of the first two views.

    queued: scalar int64, how many embeddings per view have been enqueued so far.
    """

    _new: Tensor

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.epsilon, self.iterations = config.epsilon, config.iterations
        self.queue_epoch = config.queue_epoch or 0
        # A row holds an image's embeddings of the first and the second view.
        self.queue = Queue(config.queue, 2 * config.projector.out) if config.queue else None
        self.queued = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def forward(self, batch: Batch) -> list[Contrast]:
        """A contrast with all prototypes for every view and every code of another view."""
        embeddings = in_passes(self.embed, batch.views, separate=0)  # V x (N, D)
        prototypes = self.trained_prototypes()  # (K, D)
        with torch.autocast(prototypes.device.type, enabled=False):  # bfloat16 is too coarse for 1 / epsilon
            means = [codes @ prototypes for codes in self._codes([x.detach() for x in embeddings[:2]])]
        self._new = torch.cat(embeddings[:2], 1).detach()  # (N, 2 D)
        return self.contrasts(embeddings, means, prototypes)

    def after_step(self, progress: float) -> None:
        """Rescale the prototypes to unit length, and enqueue the embeddings of the first two views."""
        with torch.no_grad():
            self.prototypes.copy_(l2_normalize(self.prototypes))
        if self.queue:
            self.queue.enqueue(gather(self._new), None, self.generator("queue"))
        self.queued.add_(ranks() * len(self._new))

    @torch.no_grad()
    def _codes(self, embeddings: list[Tensor]) -> Tensor:
        """(2, N, K): the codes of this rank's embeddings of the first two views, (N, D) each."""
        rows, n = embeddings, len(embeddings[0])
        counted = torch.ones(n, dtype=torch.bool, device=rows[0].device)
        if self.queue:
            queued = self.queue.rows
            in_use = (self.epoch >= self.queue_epoch) & (self.queued >= len(queued))
            shares = queued[rank() :: ranks()].chunk(2, 1)
            rows = [torch.cat(each) for each in zip(rows, shares, strict=True)]
            counted = torch.cat([counted, in_use.expand(len(shares[0]))])
        logits = torch.stack([each @ self.prototypes.T for each in rows]) / self.epsilon
        return sinkhorn(logits, counted, self.iterations)[:, :n]
