"""BYOL: predictions of one view's target projection from another view, without negatives."""

from typing import ClassVar, Literal

from torch import Tensor

from cl.contrast import Contrast
from cl.methods import Ema, Predicting, PredictingConfig, Setup, agreement, pairs


class Config(PredictingConfig):
    """`scale` 2 is the sum over both directions."""

    gives_negatives: ClassVar[bool] = False
    kind: Literal["byol"]
    ema: Ema


class Method(Predicting):
    """Algorithm 1 of BYOL."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup, config.ema)

    def forward(self, views: list[Tensor]) -> list[Contrast]:
        """Views (N, 3, H, W); a contrast without negatives for each view and target view."""
        predictions, targets = self.predictions_and_targets(views)
        return [agreement(predictions[a], targets[b]) for a, b in pairs(len(views))]
