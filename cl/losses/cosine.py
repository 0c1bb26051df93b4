"""Agreement of positive pairs alone, as BYOL and SimSiam maximise it."""

from typing import ClassVar, Literal

from torch import Tensor

from cl.contrast import Contrast
from cl.losses import LossConfig


class Config(LossConfig):
    """No parameter of its own."""

    needs_negatives: ClassVar[bool] = False
    kind: Literal["cosine"]


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """Squared distance of unit vectors, L_i = 2 - 2 q_i . p_i (BYOL, eq. 2); negatives, if any, are not looked at.

    Returns:
        Mean over queries and positives; scalar in [0, 4].
    """
    return (2 - 2 * contrast.positive_logits() * contrast.temperature).mean()
