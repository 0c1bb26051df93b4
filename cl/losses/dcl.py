"""Decoupled contrastive loss."""

from typing import ClassVar, Literal

from torch import Tensor

from cl.losses import LossConfig
from cl.objective.terms import Contrast


class Config(LossConfig):
    """No parameters."""

    gives: ClassVar = {"decoupled", "columns"}
    kind: Literal["dcl"]


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """The positive leaves the denominator (DCL, eq. 5).

    L_i = Z_i - s_i, with s_i the positive logit and Z_i the log-partition over the negatives of query i.
    May be negative: unlike InfoNCE, it is not bounded below by 0.
    """
    return contrast.mean_over_queries(contrast.negative_log_partition()[:, None] - contrast.positive_logits())
