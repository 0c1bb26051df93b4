"""What the training loop trains: modules that turn a batch of views into a loss."""

from types import ModuleType
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from pydantic import BaseModel
from torch import Tensor, nn

from cl.machine import Machine

if TYPE_CHECKING:
    from cl.methods import Framework


class Task(nn.Module):
    """A module whose `forward(views, labels)` turns V views (N, 3, S, S) and labels (N,) into a loss, a scalar."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def begin_step(self, step: int, progress: float) -> None:
        """Called before `forward`; `progress` in [0, 1) is the fraction of steps done."""

    def after_step(self, progress: float) -> None:
        """Called after the optimizer's step."""


class Contrastive(Task):
    """A framework and a loss: `scale` times the mean over the framework's contrasts."""

    def __init__(self, method: "Framework", loss: ModuleType, loss_config: BaseModel, scale: float, machine: Machine) -> None:
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
            self.negatives = int(contrasts[0].negative_counts()[0])  # for the record: what a query really meets
        losses = [self.loss(contrast, self.loss_config, self.progress) for contrast in contrasts]
        return self.scale * torch.stack(losses).mean()

    def after_step(self, progress: float) -> None:
        self.method.after_step(progress)


class Classification(Task):
    """A backbone and a linear classifier, trained together; the first view is used."""

    def __init__(self, backbone: nn.Module, classifier: nn.Linear, machine: Machine) -> None:
        super().__init__(machine)
        self.backbone, self.classifier = backbone, classifier

    def forward(self, views: list[Tensor], labels: Tensor) -> Tensor:
        with self.machine.autocast():
            logits = self.classifier(self.backbone(views[0]))
        return F.cross_entropy(logits.float(), labels)


class Probes(Task):
    """Several linear classifiers on one frozen backbone, which stays in eval mode; the sum of their losses."""

    def __init__(self, backbone: nn.Module, heads: nn.ModuleList, machine: Machine) -> None:
        super().__init__(machine)
        self.frozen = [backbone]  # in a list: no submodule, so neither trained nor saved with the heads
        self.heads = heads

    def forward(self, views: list[Tensor], labels: Tensor) -> Tensor:
        backbone = self.frozen[0].eval()
        with torch.no_grad(), self.machine.autocast():
            features = backbone(views[0]).float()  # (N, D)
        return torch.stack([F.cross_entropy(head(features), labels) for head in self.heads]).sum()


def classifier(width: int, classes: int) -> nn.Linear:
    """A linear layer with weights N(0, 0.01) and bias 0, as the papers' linear evaluations start."""
    layer = nn.Linear(width, classes)
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)
    return layer
