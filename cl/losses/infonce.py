"""InfoNCE with the margin of EqCo."""

import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cl.losses import LossConfig
from cl.objective.terms import Contrast


class Config(LossConfig):
    """`alpha`: the loss behaves as if it had this many negatives (EqCo, eq. 5); null: the actual number.

    positives: of a query with several, each against the negatives (`each`), or all of them in one denominator
        (`out`: SupCon, L_out).
    """

    gives: ClassVar = {"columns"}
    kind: Literal["infonce"]
    alpha: float | None = Field(gt=0)
    positives: Literal["each", "out"]


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """Cross-entropy of the positive against the negatives (EqCo, eq. 1, margin temperature * log(alpha / n)).

    L_i = log(exp s_i + (alpha / n) sum_k exp(q_i . k / temperature)) - s_i
    = softplus(Z_i + log(alpha / n) - s_i), with s_i the positive logit and Z_i the log-partition over the n
    negatives of query i. Never negative. With several positives it is the mean over them; in the form `out`
    (Khosla et al. 2020, eq. 2), exp s_i in the log becomes the sum of exp s_j over all positives j.
    """
    negative = contrast.negative_log_partition()  # (N,)
    if config.alpha is not None:
        negative = negative + math.log(config.alpha) - contrast.negative_counts.log()
    positive = contrast.positive_logits()  # (N, P)
    if config.positives == "each" or positive.shape[1] == 1:
        return contrast.mean_over_queries(F.softplus(negative[:, None] - positive))
    denominator = torch.logaddexp(contrast.positive_log_partition(), negative)
    return contrast.mean_over_queries(denominator[:, None] - positive)
