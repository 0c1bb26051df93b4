"""The task of pretraining: a method and a loss."""

from types import ModuleType

import torch
from pydantic import BaseModel
from torch import Tensor

from cl.methods import BaseMethod
from cl.networks.batch_norm import set_groups
from cl.objective.batch import Batch
from cl.objective.terms import Contrast, Term
from cl.runtime.machine import Machine
from cl.training.tasks import Task


class PretrainingTask(Task):
    """A method and a loss: `scale` times the mean over the method's terms of weight times loss.

    Attributes:
        alignment: mean squared distance of the last batch's positive pairs, in [0, 4] (Wang and Isola 2020).
        has_groups: whether the data has groups, or values that negatives share.
        without_negatives: scalar, the number of queries on all ranks that these left without negatives since
            the last `take_without_negatives`.
        most_negatives: scalar, see `negatives`; -1 without any.
    """

    alignment: Tensor
    without_negatives: Tensor
    most_negatives: Tensor

    def __init__(
        self, method: BaseMethod, loss: ModuleType, loss_config: BaseModel, scale: float, machine: Machine
    ) -> None:
        super().__init__(machine, method.seed)
        self.method, self.loss, self.loss_config, self.scale = method, loss.loss, loss_config, scale
        set_groups(method, method.bn_groups)
        self.progress = 0.0
        self.remedy = "Lower optim.base_lr or lengthen optim.warmup_epochs"
        if method.temperature:
            self.remedy += ", or raise the temperature"
        self.has_groups = False
        self.register_buffer("without_negatives", torch.zeros((), dtype=torch.int64))
        self.register_buffer("most_negatives", torch.tensor(-1))

    @property
    def negatives(self) -> int | None:
        """The largest number of images that were negatives of a query; None without such terms."""
        count = int(self.most_negatives)
        return None if count < 0 else count

    def begin_epoch(self, epoch: int) -> None:
        self.method.begin_epoch(epoch)

    def begin_step(self, step: int, progress: float) -> None:
        super().begin_step(step, progress)
        self.method.step, self.progress = step, progress

    def forward(self, batch: Batch) -> Tensor:
        with self.machine.autocast():
            terms = self.method(batch)
        self._note(terms)
        losses = [term.weight * self.loss(term, self.loss_config, self.progress) for term in terms]
        return self.scale * torch.stack(losses).mean()

    def after_step(self, progress: float) -> None:
        super().after_step(progress)
        self.method.after_step(progress)

    @torch.no_grad()
    def _note(self, terms: list[Term]) -> None:
        self.alignment = torch.cat([term.squared_distances().flatten() for term in terms]).mean()
        contrasts = [term for term in terms if isinstance(term, Contrast)]
        if contrasts and self.method.negatives_are_images:
            most = contrasts[0].negative_counts.amax()
            self.most_negatives.copy_(torch.maximum(self.most_negatives, most))
        for contrast in contrasts:
            if contrast.negatives.masks:
                self.has_groups = True
                self.without_negatives += contrast.queries_without_negatives()

    def take_without_negatives(self) -> int:
        """Return the number of queries without negatives, and reset it to 0."""
        count = int(self.without_negatives)
        self.without_negatives.zero_()
        return count
