"""NNCLR: the nearest neighbour of one view in a queue of embeddings, against predictions of another view."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cl.methods import Setup, pairs
from cl.methods._shared.predictor_method import PredictorMethod, PredictorMethodConfig
from cl.networks.queue import Queue
from cl.networks.target import Ema
from cl.objective.batch import Batch
from cl.objective.negatives import gather_groups
from cl.objective.terms import Contrast
from cl.runtime.distributed import gather

SIMILARITIES = 2**24  # between batch and queue, held at a time


class Config(PredictorMethodConfig):
    """`ema`: of the target encoder; null: the online encoder is the target, as in the paper."""

    gives: ClassVar = {*PredictorMethodConfig.gives, "contrasts"}
    kind: Literal["nnclr"]
    queue: int = Field(gt=0, description="projections")
    ema: Ema | None


class Method(PredictorMethod):
    """NNCLR, section 3.2: the neighbour is the query; predictions are its keys and carry the gradient.

    A neighbour represents an image, so the image's group is used.
    """

    _new: tuple[Tensor, Tensor | None]

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.queue = Queue(config.queue, config.projector.out)

    def forward(self, batch: Batch) -> list[Contrast]:
        """A contrast of N neighbours with each of the E predictions for each view and target view."""
        predictions, targets = self.predictions_and_targets(batch.views)  # (N, E, D), (N, D)
        groups = batch.row_groups()
        self._new = targets[0], groups
        neighbours = [self._nearest(target, groups) for target in targets]
        return [
            self.contrast_in_batch(neighbours[b][:, None], keys, batch)
            for a, b in pairs(len(batch.views))
            for keys in predictions[a].unbind(1)
        ]

    def after_step(self, progress: float) -> None:
        super().after_step(progress)
        embeddings, groups = self._new
        self.queue.enqueue(gather(embeddings), gather_groups(groups), self.generator("queue"))

    @torch.no_grad()
    def _nearest(self, embeddings: Tensor, groups: Tensor | None) -> Tensor:
        """(N, D): the row of the queue most similar to each embedding (N, D), among rows of other groups.

        If all rows belong to the embedding's group, the embedding itself is the neighbour.
        """
        rows, found = self.queue.rows, []
        size = max(1, SIMILARITIES // len(rows))
        for start in range(0, len(embeddings), size):
            block = slice(start, start + size)
            with torch.autocast(rows.device.type, enabled=False):  # in bfloat16, near neighbours would tie
                similarities = embeddings[block] @ rows.T  # (n, size)
            if groups is None:
                found.append(rows[similarities.argmax(1)])
                continue
            same = groups[block, None] == self.queue.groups
            nearest = rows[similarities.masked_fill(same, -torch.inf).argmax(1)]
            found.append(torch.where(same.all(1, keepdim=True), embeddings[block], nearest))
        return torch.cat(found)
