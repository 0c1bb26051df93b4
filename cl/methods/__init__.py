"""Frameworks, one file each: a pydantic `Config` and an `nn.Module` named `Method`."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torchvision.models.resnet import ResNet

from cl import heads
from cl.batch_norm import set_groups
from cl.strict import Strict


class MethodConfig(Strict):
    """What every framework's parameters have: `scale` multiplies the loss."""

    gives_negatives: ClassVar[bool]
    kind: str
    projector: heads.Config
    scale: float = Field(gt=0)


class Framework(nn.Module):
    """What every framework has: the encoder that is evaluated, and the number of the step.

    A framework turns views into contrasts (`forward`) and looks after its own state once the optimizer has moved
    (`after_step`). It has no hidden random state: what it draws comes from `self.generator()`, that is from (seed, step).
    """

    step = 0  # set by the training loop before `forward`

    def __init__(self, backbone: ResNet, projector: heads.Config, *, bn_groups: int, seed: int) -> None:
        super().__init__()
        self.seed, self.bn_groups = seed, bn_groups
        self.backbone = backbone
        self.projector = heads.build(projector, backbone.fc_features)
        set_groups(self.backbone, bn_groups)
        set_groups(self.projector, bn_groups)

    def embed(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to unit rows (N, D)."""
        return unit(self.projector(self.backbone(images)))

    def after_step(self, progress: float) -> None:
        """Called after the optimizer's step; `progress` in (0, 1] is the fraction of steps done."""

    def generator(self) -> torch.Generator:
        """Random numbers on the host that depend on (seed, step) alone."""
        return torch.Generator().manual_seed(self.seed * 1_000_003 + self.step)


def unit(x: Tensor) -> Tensor:
    """Rows of length 1, in float32 whatever the encoder's precision (float64 stays)."""
    return F.normalize(x if x.dtype == torch.float64 else x.float(), dim=1)
