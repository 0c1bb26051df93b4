"""Joint contrastive learning: infinitely many Gaussian positives in closed form."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cl.losses import LossConfig
from cl.objective.terms import Contrast


class Config(LossConfig):
    """`strength` is the paper's lambda, which scales the covariance.

    ramp: lambda rises linearly from 0 over the run, at every step. In the authors' code, it rises once per
        epoch, to (e + 1) / E of its value.
    """

    needs: ClassVar = {"contrasts", "several positives"}
    gives: ClassVar = {"columns"}
    kind: Literal["jcl"]
    strength: float = Field(ge=0)
    ramp: bool


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """An upper bound on InfoNCE's mean over keys drawn from N(mu, Sigma) (JCL, eq. S.2 and S.3).

    L_i = log(exp(q . mu / tau + lambda / (2 tau^2) q' Sigma q) + exp Z_i) - q . mu / tau, with mu and Sigma
    the mean and covariance of the query's M' keys. q . mu / tau is the mean of its positive logits and
    q' Sigma q / tau^2 their variance, so no D x D matrix is needed. With one key or lambda = 0, it is
    InfoNCE against the mean key.
    """
    logits = contrast.positive_logits()  # (N, P)
    mean = contrast.mean_over_positives(logits)
    strength = config.strength * (progress if config.ramp else 1.0)
    variance = contrast.mean_over_positives((logits - mean[:, None]).square())
    joint = mean + strength / 2 * variance
    return contrast.mean_over_queries(torch.logaddexp(joint, contrast.negative_log_partition()) - mean)
