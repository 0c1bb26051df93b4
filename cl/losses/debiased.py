"""Debiased contrastive loss: some negatives are of the query's own class."""

from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cl.contrast import Contrast
from cl.losses import LossConfig
from cl.losses._debiasing import log_without_false_negatives


class Config(LossConfig):
    """`tau_plus`: the probability that a negative is of the query's class; 0 would be InfoNCE."""

    takes: ClassVar = Contrast
    kind: Literal["debiased"]
    tau_plus: float = Field(gt=0, lt=1)


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """InfoNCE whose sum over n negatives leaves out the false ones (Chuang et al. 2020, eq. 8).

    L_i = log(exp s_i + n g_i) - s_i = softplus(log(n g_i) - s_i), with s_i the positive logit and n g_i the
    sum of exp(q_i . k / temperature) over the negatives, less what false negatives add to it.

    Returns:
        Mean over queries and positives, in nats; scalar.
    """
    negative = log_without_false_negatives(contrast, contrast.negative_log_partition(), config.tau_plus)
    return contrast.mean_over_queries(F.softplus(negative[:, None] - contrast.positive_logits()))
