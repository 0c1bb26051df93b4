"""InfoNCE without the share of false negatives, and with more weight on hard ones."""

import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cl.contrast import Contrast
from cl.losses import LossConfig


class Config(LossConfig):
    """`tau_plus`: the probability that a negative is of the query's class; negatives weigh exp(beta s)."""

    takes: ClassVar = Contrast
    kind: Literal["debiased"]
    tau_plus: float = Field(gt=0, lt=1)
    beta: float = Field(ge=0)


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """Chuang et al. 2020, eq. 8; with beta > 0, Robinson et al. 2021, eq. 4.

    L_i = softplus(log(n g_i) - s_i), with n g_i = (S_i - n tau_plus mean exp(s_i)) / (1 - tau_plus), at least
    n exp(-1 / temperature). S_i is the sum over the n negatives of w_k exp(s_k), w_k proportional to exp(beta
    s_k) and 1 in the mean: n exp(Z(1 + beta) - Z(beta)), with Z(b) the log-partition of logits b s_k.

    Returns:
        Mean over queries and positives, in nats; scalar.
    """
    positive, log_count = contrast.positive_logits(), contrast.negative_counts().clamp(min=1).log()
    weighted = contrast.negative_log_partition(1 + config.beta)  # (N,)
    if config.beta:
        weighted = weighted - contrast.negative_log_partition(config.beta) + log_count
    false = positive.logsumexp(1) - math.log(positive.shape[1]) + log_count + math.log(config.tau_plus)
    fewer = false < weighted  # else the difference is not positive
    share = torch.where(fewer, false - weighted, -1).expm1().neg()  # of true negatives in the sum
    least = log_count - 1 / contrast.temperature
    rest = torch.maximum(weighted + share.log() - math.log1p(-config.tau_plus), least)
    return contrast.mean_over_queries(F.softplus(torch.where(fewer, rest, least)[:, None] - positive))
