"""InfoNCE corrected for false negatives, optionally with more weight on hard negatives."""

import math
from typing import Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cl.losses import LossConfig
from cl.objective.terms import Contrast


class Config(LossConfig):
    """`tau_plus`: the probability that a negative is of the query's class; negatives weigh exp(beta s)."""

    kind: Literal["debiased"]
    tau_plus: float = Field(gt=0, lt=1)
    beta: float = Field(ge=0)


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """Chuang et al. 2020, eq. 8; with beta > 0, Robinson et al. 2021, eq. 4.

    L_i = softplus(log(n g_i) - s_i), g_i = (mean w_k exp(s_k) - tau_plus mean exp(s_i)) / (1 - tau_plus), at
    least exp(-1 / temperature). Weights of the n negatives are proportional to exp(beta s_k), 1 in the mean:
    mean w_k exp(s_k) = exp(Z(1 + beta) - Z(beta)), with Z(b) the log-partition of b s_k, and Z(0) = log n.
    """
    positive, log_count = contrast.positive_logits(), contrast.negative_counts.clamp(min=1).log()
    weights = contrast.negative_log_partition(config.beta) if config.beta else log_count  # (N,)
    log_mean = contrast.negative_log_partition(1 + config.beta) - weights  # of w_k exp(s_k)
    # The log of the false share.
    false = positive.logsumexp(1) - math.log(positive.shape[1] / config.tau_plus) - log_mean
    true = false.where(false < 0, -1).expm1().neg()  # the remaining share, if positive
    log_g = (log_mean + true.log() - math.log1p(-config.tau_plus)).where(false < 0, -math.inf)
    log_g = log_g.clamp(min=-1 / contrast.temperature)
    return contrast.mean_over_queries(F.softplus((log_count + log_g)[:, None] - positive))
