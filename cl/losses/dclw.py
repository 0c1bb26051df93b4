"""Decoupled contrastive loss with weighted positives."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from cl.losses import LossConfig
from cl.objective.terms import Contrast
from cl.objective.traits import Traits


class Config(LossConfig):
    """How positives are weighted.

    sigma: small values sharpen the weights, large values approach DCL; 0.5 in the paper.
    detach_weight: whether gradients stop at the weights.
    """

    gives: ClassVar[Traits] = {"decoupled", "columns"}
    kind: Literal["dclw"]
    sigma: float = Field(gt=0)
    detach_weight: bool


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """Pairs that agree less weigh more (DCL, eq. 6).

    L_i = Z_i - w_i s_i with w_i = 2 - exp(c_i / sigma) / mean_j exp(c_j / sigma), c the cosine of a positive
    pair. The mean is over the contrast's queries of all ranks, so the mean weight is 1.
    """
    logits = contrast.positive_logits()  # (N, P)
    weight = _weights(logits * contrast.temperature, config.sigma, contrast)
    if config.detach_weight:
        weight = weight.detach()
    return contrast.mean_over_queries(contrast.negative_log_partition()[:, None] - weight * logits)


def _weights(cosines: Tensor, sigma: float, contrast: Contrast) -> Tensor:
    """(N, P); exponents are at most 0, so a small sigma does not overflow."""
    exponentials = ((cosines - 1) / sigma).exp()
    return 2 - exponentials / contrast.batch_mean(exponentials)
