"""BYOL: from one view, predict the target projection of another, without negatives."""

from typing import ClassVar, Literal

from cl.methods._shared.predictor_method import PredictorMethod, PredictorMethodConfig
from cl.networks.target import Ema
from cl.objective.batch import Batch
from cl.objective.terms import Agreement


class Config(PredictorMethodConfig):
    """`scale` 2 is the sum over both directions."""

    gives: ClassVar = {*PredictorMethodConfig.gives, "pairs"}
    kind: Literal["byol"]
    ema: Ema


class Method(PredictorMethod):
    """Algorithm 1 of BYOL."""

    def forward(self, batch: Batch) -> list[Agreement]:
        """The agreement of each view with each target view."""
        return self.agreements(batch.views)
