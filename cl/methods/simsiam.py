"""SimSiam: BYOL whose target is the online encoder itself, behind a stop-gradient."""

from typing import ClassVar, Literal

from cl.methods._shared.pairs import agreement, pairs
from cl.methods._shared.predictor_method import PredictorMethod, PredictorMethodConfig
from cl.objective.batch import Batch
from cl.objective.terms import Agreement
from cl.objective.traits import Traits


class Config(PredictorMethodConfig):
    """`scale` 0.5 is the authors' mean of negative cosines, up to a constant."""

    gives: ClassVar[Traits] = {*PredictorMethodConfig.gives, "pairs"}
    kind: Literal["simsiam"]


class Method(PredictorMethod):
    """Algorithm 1 of SimSiam."""

    def forward(self, batch: Batch) -> list[Agreement]:
        """The agreement of each view with each target view."""
        predictions, targets = self.predictions_and_targets(batch.views)
        return [agreement(predictions[a], targets[b]) for a, b in pairs(len(batch.views))]
