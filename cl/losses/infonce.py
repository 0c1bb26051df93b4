"""InfoNCE with the margin of EqCo."""

import math
from typing import Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cl.losses import LossConfig
from cl.objective.terms import Contrast


class Config(LossConfig):
    """`alpha`: the loss behaves as if it had this many negatives (EqCo, eq. 5); null: the actual number."""

    kind: Literal["infonce"]
    alpha: float | None = Field(gt=0)


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """Cross-entropy of the positive against the negatives (EqCo, eq. 1, margin temperature * log(alpha / n)).

    L_i = log(exp s_i + (alpha / n) sum_k exp(q_i . k / temperature)) - s_i
    = softplus(Z_i + log(alpha / n) - s_i), with s_i the positive logit and Z_i the log-partition over the n
    negatives of query i. Never negative.
    """
    negative = contrast.negative_log_partition()  # (N,)
    if config.alpha is not None:
        negative = negative + math.log(config.alpha) - contrast.negative_counts.log()
    return contrast.mean_over_queries(F.softplus(negative[:, None] - contrast.positive_logits()))
