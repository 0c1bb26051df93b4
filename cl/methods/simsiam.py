"""SimSiam: BYOL with the online encoder as its target, behind a stop-gradient."""

from typing import ClassVar, Literal

from cl.methods._shared.predictor_method import PredictorMethod, PredictorMethodConfig
from cl.objective.batch import Batch
from cl.objective.terms import Agreement


class Config(PredictorMethodConfig):
    """`scale` 0.5 is the authors' mean of negative cosines, up to a constant."""

    gives: ClassVar = {*PredictorMethodConfig.gives, "pairs"}
    kind: Literal["simsiam"]


class Method(PredictorMethod):
    """Algorithm 1 of SimSiam."""

    def forward(self, batch: Batch) -> list[Agreement]:
        """The agreement of each view with each target view."""
        return self.agreements(batch.views)
