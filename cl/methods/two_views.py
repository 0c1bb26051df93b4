"""Two views of a batch, for losses on batch statistics: Barlow Twins and VICReg."""

from typing import ClassVar, Literal

from torch import Tensor

from cl.methods import BaseMethod, MethodConfig
from cl.networks.passes import full_precision, in_passes
from cl.objective.batch import Batch
from cl.objective.terms import TwoViews


class Config(MethodConfig):
    """No further parameters: the loss makes the difference between the methods."""

    gives: ClassVar = {"two views"}
    kind: Literal["two_views"]


class Method(BaseMethod):
    """Algorithm 1 of Barlow Twins and of VICReg: both views through one network, each in its own pass."""

    def forward(self, batch: Batch) -> list[TwoViews]:
        """The first view with the second; any further views with each of these two, as in multi-crop."""
        projections = in_passes(self._project, batch.views, separate=2)  # V x (N, D)
        return [
            TwoViews(projections[b], projections[a]) for b in range(2) for a in range(b + 1, len(projections))
        ]

    def _project(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to raw rows (N, D)."""
        return full_precision(self.projector(self.backbone(images)))
