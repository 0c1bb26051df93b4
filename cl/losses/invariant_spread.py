"""Invariant Spread: recognise the positive, and reject every negative."""

from typing import Literal

import torch
from torch import Tensor

from cl.losses import LossConfig
from cl.objective.terms import Contrast


class Config(LossConfig):
    """No parameters."""

    kind: Literal["invariant_spread"]


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """Log-likelihood of recognising the positive and rejecting each negative (Ye et al. 2019, eq. 7).

    L_i = -log P(p | i) - sum_k log(1 - P(k | i)), with P the softmax over the positive and the negatives of
    query i. If there are several positives, each has its own softmax with the negatives.
    """
    positive = contrast.positive_logits()  # (N, P)
    partition = torch.logaddexp(contrast.negative_log_partition()[:, None], positive)
    each = zip(positive.unbind(1), partition.unbind(1), strict=True)
    rejected = torch.stack([contrast.negative_log_complement_sum(s, z) for s, z in each], 1)
    return contrast.mean_over_queries(partition - positive - rejected)
