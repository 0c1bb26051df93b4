"""Agreement of positive pairs without negatives, as BYOL and SimSiam maximise it."""

from typing import ClassVar, Literal

from torch import Tensor

from cl.losses import LossConfig
from cl.objective.terms import Agreement


class Config(LossConfig):
    """No parameters."""

    needs: ClassVar = {"pairs"}
    kind: Literal["cosine"]


def loss(agreement: Agreement, config: Config, progress: float) -> Tensor:
    """Squared distance of unit vectors, L_i = 2 - 2 q_i . p_i in [0, 4] (BYOL, eq. 2)."""
    return agreement.squared_distances().mean()
