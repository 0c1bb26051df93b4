"""SimSiam: BYOL whose target is the online encoder itself, behind a stop-gradient."""

from typing import ClassVar, Literal

from torch import Tensor

from cl.contrast import Contrast
from cl.methods import Predicting, PredictingConfig, Setup, agreement, pairs


class Config(PredictingConfig):
    """`scale` 0.5 is the authors' mean of negative cosines, up to a constant."""

    gives_negatives: ClassVar[bool] = False
    kind: Literal["simsiam"]


class Method(Predicting):
    """Algorithm 1 of SimSiam."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup, ema=None)

    def forward(self, views: list[Tensor]) -> list[Contrast]:
        """Views (N, 3, H, W); a contrast without negatives for each view and target view."""
        predictions, targets = self.predictions_and_targets(views)
        return [agreement(predictions[a], targets[b]) for a, b in pairs(len(views))]
