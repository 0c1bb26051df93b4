"""MoCo v3: predictions against momentum keys of the other view, both ways; Fast-MoCo with patches."""

from typing import ClassVar, Literal

from cl.methods import pairs
from cl.methods._shared.predictor_method import PredictorMethod, PredictorMethodConfig
from cl.networks.target import Ema
from cl.objective.batch import Batch
from cl.objective.terms import Contrast
from cl.runtime.distributed import gather_together


class Config(PredictorMethodConfig):
    """`scale`: MoCo v3 multiplies the sum over both directions by 2 temperature, so the mean by 4."""

    gives: ClassVar = {*PredictorMethodConfig.gives, "contrasts"}
    kind: Literal["moco_v3"]
    ema: Ema


class Method(PredictorMethod):
    """Algorithm 1 of MoCo v3 and of Fast-MoCo."""

    def forward(self, batch: Batch) -> list[Contrast]:
        """A contrast of N E queries with the keys of the batch for each view and target view."""
        queries, keys = self.predictions_and_targets(batch.views)
        all_keys = gather_together(keys)
        return [
            self.contrast_in_batch(queries[a], keys[b], batch, all_keys[b])
            for a, b in pairs(len(batch.views))
        ]
