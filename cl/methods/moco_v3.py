"""MoCo v3: predictions against momentum keys of the other view, both ways; with combinatorial patches it is Fast-MoCo."""

from typing import ClassVar, Literal

from torch import Tensor

from cl.contrast import Contrast
from cl.methods import Ema, Predicting, PredictingConfig, Setup, contrast_in_batch, pairs


class Config(PredictingConfig):
    """`scale`: MoCo v3 multiplies the sum over both directions by 2 temperature, that is the mean by 4 temperature."""

    gives_negatives: ClassVar[bool] = True
    kind: Literal["moco_v3"]
    ema: Ema


class Method(Predicting):
    """Algorithm 1 of MoCo v3 and of Fast-MoCo."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup, config.ema)

    def forward(self, views: list[Tensor]) -> list[Contrast]:
        """Views (N, 3, H, W); a contrast of N E queries with the keys of the batch for each view and target view."""
        queries, keys = self.predictions_and_targets(views)
        return [contrast_in_batch(queries[a], keys[b], self.temperature) for a, b in pairs(len(views))]
