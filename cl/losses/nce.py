"""Noise-contrastive estimation."""

from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from cl.losses import LossConfig
from cl.objective.terms import Contrast


class Config(LossConfig):
    """No parameters."""

    needs: ClassVar = {"contrasts", "normalizer"}
    kind: Literal["nce"]


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """Tell the data from n noise samples (Wu et al. 2018, eqs. 5 to 7).

    The posterior h = P / (P + n / M), with P = exp(s) / Z over M candidates, is logistic in the logit:
    L_i = softplus(b_i - s_i) + sum_k softplus(q_i . k / temperature - b_i), b_i = log n_i + log(Z / M).
    The method estimates log(Z / M), its `log_normalizer`, once.
    """
    assert contrast.log_normalizer is not None, "the need of a normalizer"
    bias = contrast.negative_counts.clamp(min=1).log() + contrast.log_normalizer  # (N,)
    positive = F.softplus(bias[:, None] - contrast.positive_logits())
    return contrast.mean_over_queries(positive + contrast.negative_softplus_sum(bias)[:, None])
