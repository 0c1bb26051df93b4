"""What pretraining trains: a method and a loss."""

from types import ModuleType

import torch
from pydantic import BaseModel
from torch import Tensor

from cl.methods import BaseMethod
from cl.networks.batch_norm import update_running_stats
from cl.runtime.machine import Machine
from cl.training.tasks import Task


class PretrainingTask(Task):
    """A method and a loss: `scale` times the mean over the method's contrasts.

    `alignment` is the mean squared distance of the last batch's positive pairs (Wang and Isola 2020), in [0, 4].
    """

    alignment: Tensor

    def __init__(
        self, method: BaseMethod, loss: ModuleType, loss_config: BaseModel, scale: float, machine: Machine
    ) -> None:
        super().__init__(machine)
        self.method, self.loss, self.loss_config, self.scale = method, loss.loss, loss_config, scale
        self.progress = 0.0
        self.negatives: int | None = None

    def begin_step(self, step: int, progress: float) -> None:
        self.method.step, self.progress = step, progress

    def forward(self, views: list[Tensor], labels: Tensor) -> Tensor:
        with self.machine.autocast():
            contrasts = self.method(views)
        if self.negatives is None and contrasts[0].negatives is not None:
            self.negatives = int(
                contrasts[0].negative_counts()[0]
            )  # for the record: what a query really meets
        with torch.no_grad():
            positives = torch.stack([contrast.positive_logits() for contrast in contrasts])
            self.largest_logit = positives.amax()
            self.alignment = (2 - 2 * positives * contrasts[0].temperature).mean()
        losses = [self.loss(contrast, self.loss_config, self.progress) for contrast in contrasts]
        return self.scale * torch.stack(losses).mean()

    def after_step(self, progress: float) -> None:
        update_running_stats(self.method)
        self.method.after_step(progress)
