"""Progressive resizing: smaller views at the beginning of pretraining, which take less time."""

from collections.abc import Sequence
from dataclasses import replace

import torch.nn.functional as F
from pydantic import Field

from cl.objective.batch import Batch
from cl.runtime.base_config import BaseConfig


class Phase(BaseConfig):
    """Until a fraction of the steps is done, the sides of all views are shrunk to a fraction."""

    until: float = Field(gt=0, lt=1, description="fraction of the steps")
    scale: float = Field(gt=0, lt=1, description="fraction of the side")

    def side(self, size: int) -> int:
        """The side of a view of `size` pixels."""
        return max(1, round(size * self.scale))


def resized(batch: Batch, phases: Sequence[Phase], progress: float) -> Batch:
    """The batch with the views of its phase, antialiased; `progress` is the fraction of steps done."""
    phase = next((phase for phase in phases if progress < phase.until), None)
    if phase is None:
        return batch
    views = [
        F.interpolate(view, phase.side(view.shape[-1]), mode="bilinear", antialias=True)
        for view in batch.views
    ]
    return replace(batch, views=views)
