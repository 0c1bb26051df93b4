"""VICReg: equal views, a spread in every coordinate, and no correlation between coordinates."""

from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cl.losses import LossConfig
from cl.objective.terms import TwoViews

EPSILON = 1e-4  # added to variances, as in the paper


class Config(LossConfig):
    """The weights of the three terms; 25, 25 and 1 in the paper."""

    needs: ClassVar = {"two views"}
    kind: Literal["vicreg"]
    invariance: float = Field(ge=0)
    variance: float = Field(ge=0)
    covariance: float = Field(ge=0)


def loss(views: TwoViews, config: Config, progress: float) -> Tensor:
    """L = lambda s(a, b) + mu [v(a) + v(b)] / 2 + nu [c(a) + c(b)] (Bardes et al. 2022, eq. 6).

    s is the mean over images and coordinates of (a - b)^2; v the mean over coordinates of max(0, 1 - S), S
    the standard deviation; c the sum of the squared covariances of different coordinates, divided by D. The
    mean over coordinates in s and the factor 1 / 2 of v follow the authors' code, not eq. 5 and 6: the
    weights 25, 25 and 1 are meant for them. Statistics are over the images of all ranks.
    """
    a, b = views.covariances()  # (D, D) each
    invariance = (views.first - views.second).square().mean()
    variance = (_lack_of_spread(a) + _lack_of_spread(b)) / 2
    covariance = _redundancy(a) + _redundancy(b)
    return config.invariance * invariance + config.variance * variance + config.covariance * covariance


def _lack_of_spread(covariance: Tensor) -> Tensor:
    """Mean over coordinates of max(0, 1 - standard deviation)."""
    return F.relu(1 - (covariance.diagonal() + EPSILON).sqrt()).mean()


def _redundancy(covariance: Tensor) -> Tensor:
    """Sum of the squares off the diagonal, divided by D."""
    return (covariance.square().sum() - covariance.diagonal().square().sum()) / len(covariance)
