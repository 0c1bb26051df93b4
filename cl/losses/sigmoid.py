"""Each pair classified by itself."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from cl.losses import LossConfig
from cl.objective.terms import Contrast


class Config(LossConfig):
    """No parameters: the temperature is fixed, and the bias is the log of the number of negatives."""

    kind: Literal["sigmoid"]


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """Logistic regression on pairs, in the form of SigLIP (Zhai et al. 2023, section 3.2).

    L_i = softplus(b_i - s_i) + sum_k softplus(q_i . k / temperature - b_i), with s_i the positive logit and
    b_i = log n_i for n_i negatives: logits of 0 predict positives as often as they occur.
    """
    bias = contrast.negative_counts.clamp(min=1).log()  # (N,)
    positive = F.softplus(bias[:, None] - contrast.positive_logits())
    return contrast.mean_over_queries(positive + contrast.negative_softplus_sum(bias)[:, None])
