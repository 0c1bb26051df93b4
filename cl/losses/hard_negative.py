"""Debiased contrastive loss in which hard negatives weigh more."""

from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cl.contrast import Contrast
from cl.losses import LossConfig
from cl.losses._debiasing import log_without_false_negatives


class Config(LossConfig):
    """`beta`: negatives weigh exp(beta s); 0 would be the loss `debiased`, which explains `tau_plus`."""

    takes: ClassVar = Contrast
    kind: Literal["hard_negative"]
    tau_plus: float = Field(gt=0, lt=1)
    beta: float = Field(gt=0)


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """The debiased loss with n negatives weighted by w_k = n exp(beta s_k) / sum_j exp(beta s_j).

    Robinson et al. 2021, eq. 4. The weighted sum of exp(s_k) is n exp(Z(1 + beta) - Z(beta)), with Z(b) the
    log-partition of logits b s_k, so it needs two of these. Weights carry gradient, as in the authors' code.

    Returns:
        Mean over queries and positives, in nats; scalar.
    """
    sharper = contrast.negative_log_partition(1 + config.beta)
    weights = contrast.negative_log_partition(config.beta)
    partition = sharper - weights + contrast.negative_counts().clamp(min=1).log()
    negative = log_without_false_negatives(contrast, partition, config.tau_plus)
    return contrast.mean_over_queries(F.softplus(negative[:, None] - contrast.positive_logits()))
