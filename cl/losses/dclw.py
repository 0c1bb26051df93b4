"""Decoupled contrastive loss with weighted positives."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from cl.losses import LossConfig
from cl.objective.terms import Contrast


class Config(LossConfig):
    """How positives are weighted.

    sigma: small values sharpen the weights, large values approach DCL; 0.5 in the paper.
    detach_weight: whether gradients stop at the weights.
    """

    gives: ClassVar = {"decoupled", "columns"}
    kind: Literal["dclw"]
    sigma: float = Field(gt=0)
    detach_weight: bool


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """Pairs that agree less weigh more (DCL, eq. 6).

    L_i = Z_i - w_i s_i with w_i = 2 - exp(c_i / sigma) / mean_j exp(c_j / sigma), c the cosine of a positive
    pair. The mean is over the contrast's queries of all ranks, so the mean weight is 1.
    """
    logits = contrast.positive_logits()  # (N, P)
    cosines = logits * contrast.temperature
    agreement = ((cosines - 1) / config.sigma).exp()  # at most 1, so a small sigma does not overflow
    weight = 2 - agreement / contrast.batch_mean(agreement)
    if config.detach_weight:
        weight = weight.detach()
    return contrast.mean_over_queries(contrast.negative_log_partition()[:, None] - weight * logits)
