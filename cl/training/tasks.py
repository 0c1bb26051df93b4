"""Tasks of the training loop: modules that turn a batch into a loss."""

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cl.networks.batch_norm import has_batch_norm, set_groups, update_running_stats
from cl.objective.batch import Batch
from cl.runtime.distributed import rank, ranks
from cl.runtime.machine import Machine


class Task(nn.Module):
    """A module whose `forward(batch)` turns a batch into a loss, a scalar."""

    captured = False  # whether encoders run as CUDA graphs, whose outputs the next step overwrites
    # Advice if a loss is not finite.
    remedy = "Lower base_lr or lengthen warmup_epochs of this training's optim"

    def __init__(self, machine: Machine, seed: int = 0) -> None:
        super().__init__()
        self.machine, self.seed = machine, seed

    def begin_epoch(self, epoch: int) -> None:
        """Called before the first step of an epoch (from 0); a run resumed within it relies on buffers."""

    def begin_step(self, step: int, progress: float) -> None:
        """Called before `forward`; `progress` in [0, 1) is the fraction of steps done.

        It seeds PyTorch, so that a network's random numbers, such as those of drop path, depend only on seed,
        step, rank and number of ranks.
        """
        if self.captured:
            torch.compiler.cudagraph_mark_step_begin()
        seed = (self.seed * 1_000_003 + step) * ranks() + rank()
        # Not `torch.manual_seed`: it formats a stack trace for each kind of device that is not in use.
        torch.default_generator.manual_seed(seed)
        if self.machine.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def after_step(self, progress: float) -> None:
        """Called after the optimizer's step; updates the running statistics of batch norm."""
        if self._has_batch_norm:
            update_running_stats(self)

    @cached_property
    def _has_batch_norm(self) -> bool:
        """Kept, as looking through a network in every step would take long."""
        return has_batch_norm(self)

    def reported(self, loss: Tensor) -> dict[str, Tensor]:
        """Scalars whose means over an epoch's steps enter its row; `loss` is the result of `forward`."""
        return {"loss": loss}


class SupervisedTask(Task):
    """A backbone and a linear classifier, trained together on the first view.

    shared: whether batch norm is over the batch of all ranks; otherwise, over each rank's images.
    """

    def __init__(
        self,
        backbone: nn.Module,
        classifier: nn.Linear,
        machine: Machine,
        *,
        seed: int = 0,
        shared: bool = True,
    ) -> None:
        super().__init__(machine, seed)
        set_groups(backbone, 1 if shared else ranks())
        self.backbone, self.classifier = backbone, classifier

    def forward(self, batch: Batch) -> Tensor:
        with self.machine.autocast():
            logits = self.classifier(self.backbone(batch.views[0]))
        return F.cross_entropy(logits.float(), batch.labels)


class Probes(Task):
    """Linear classifiers on one frozen backbone in eval mode; the loss is the sum of their losses.

    backbone: None if the views are features already. losses: (classifiers,), of the last batch.
    """

    losses: Tensor

    def __init__(self, backbone: nn.Module | None, heads: nn.ModuleList, machine: Machine) -> None:
        super().__init__(machine)
        # A list hides it from PyTorch: it is neither trained nor saved with the heads.
        self.frozen = [nn.Identity() if backbone is None else backbone]
        self.heads = heads

    def forward(self, batch: Batch) -> Tensor:
        backbone = self.frozen[0].eval()
        with torch.no_grad(), self.machine.autocast():
            features = backbone(batch.views[0]).float()  # (N, D)
        losses = torch.stack([F.cross_entropy(head(features), batch.labels) for head in self.heads])
        self.losses = losses.detach()
        return losses.sum()

    def reported(self, loss: Tensor) -> dict[str, Tensor]:
        """`loss` is the mean over the classifiers; `head_<number>_loss` is the loss of one."""
        return {"loss": self.losses.mean()} | {f"head_{i}_loss": x for i, x in enumerate(self.losses)}


def classifier(width: int, classes: int) -> nn.Linear:
    """A linear layer with weights from N(0, 0.01^2) and bias 0, as in the papers' linear evaluations."""
    layer = nn.Linear(width, classes)
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)
    return layer
