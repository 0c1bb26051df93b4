"""What debiased losses share: the sum over negatives less the share of false ones."""

import math

import torch
from torch import Tensor

from cl.contrast import Contrast


def log_without_false_negatives(contrast: Contrast, partition: Tensor, tau_plus: float) -> Tensor:
    """(N,): log of n g, with n g = (exp(Z) - n tau_plus mean exp(s)) / (1 - tau_plus) for n negatives.

    The mean is over the positives. n g is at least n exp(-1 / temperature), its smallest possible value for
    unit rows (Chuang et al. 2020, eqs. 7 and 8).

    Args:
        partition: (N,), Z, the log-partition over the negatives.
        tau_plus: the probability that a negative is of the query's class.
    """
    positive = contrast.positive_logits()  # (N, P)
    log_count = contrast.negative_counts().clamp(min=1).log()
    false = positive.logsumexp(1) - math.log(positive.shape[1]) + log_count + math.log(tau_plus)
    fewer = false < partition  # else the difference is not positive
    ratio = torch.where(fewer, false - partition, -1)
    rest = partition + torch.log(-torch.expm1(ratio)) - math.log1p(-tau_plus)
    least = log_count - 1 / contrast.temperature
    return torch.where(fewer, torch.maximum(rest, least), least)
