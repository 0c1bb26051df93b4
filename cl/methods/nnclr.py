"""NNCLR: the nearest neighbour of one view in a queue of embeddings, against predictions of another view."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cl.contrast import Contrast
from cl.methods import Ema, Predicting, PredictingConfig, Queue, Setup, contrast_in_batch, pairs
from cl.runtime.distributed import gather

SIMILARITIES = 2**24  # of queue and batch that are held at a time


class Config(PredictingConfig):
    """`queue` of so many target projections; `ema`: of the target encoder, null for the online encoder (NNCLR itself)."""

    gives_negatives: ClassVar[bool] = True
    kind: Literal["nnclr"]
    queue: int = Field(gt=0, description="projections")
    ema: Ema | None


class Method(Predicting):
    """NNCLR, section 3.2: the neighbour is the query, the batch's predictions are its keys and carry the gradient."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup, config.ema)
        self.queue = Queue(config.queue, config.projector.out)
        self._new: Tensor | None = None

    def forward(self, views: list[Tensor]) -> list[Contrast]:
        """Views (N, 3, H, W); a contrast of N neighbours for each view, each of its E embeddings, and target view."""
        predictions, targets = self.predictions_and_targets(views)  # (N, E, D), (N, D)
        self._new = targets[0]
        neighbours = [self._nearest(target) for target in targets]
        return [
            contrast_in_batch(neighbours[b][:, None], keys, self.temperature)
            for a, b in pairs(len(views))
            for keys in predictions[a].unbind(1)
        ]

    def after_step(self, progress: float) -> None:
        """Move the target, if there is one, and queue the first view's projections."""
        super().after_step(progress)
        assert self._new is not None
        self.queue.enqueue(gather(self._new), self.generator("queue"))

    @torch.no_grad()
    def _nearest(self, embeddings: Tensor) -> Tensor:
        """(N, D): of each embedding the most similar entry of the queue."""
        rows = self.queue.rows
        blocks = embeddings.split(max(1, SIMILARITIES // len(rows)))
        with torch.autocast(rows.device.type, enabled=False):  # in bfloat16 near neighbours would be ties
            return rows[torch.cat([(block @ rows.T).argmax(1) for block in blocks])]
