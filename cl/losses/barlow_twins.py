"""Barlow Twins: the views' cross-correlation matrix becomes the identity."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from cl.losses import LossConfig
from cl.objective.terms import TwoViews


class Config(LossConfig):
    """`redundancy`: the paper's lambda, the weight of the off-diagonal entries; 0.0051 in its code."""

    needs: ClassVar = {"two views"}
    kind: Literal["barlow_twins"]
    redundancy: float = Field(ge=0)


def loss(views: TwoViews, config: Config, progress: float) -> Tensor:
    """L = sum_i (1 - C_ii)^2 + lambda sum_{i != j} C_ij^2 (Zbontar et al. 2021, eq. 1).

    C is the cross-correlation of the coordinates over the images of all ranks. All ranks compute the same
    loss, and its gradient reaches every rank's rows, so the mean over ranks equals the gradient of a single
    process. In the authors' code it does not, and their gradient is 1 / ranks of the true one.
    """
    correlation = views.cross_correlation()  # (D, D)
    diagonal = correlation.diagonal()
    redundant = correlation.square().sum() - diagonal.square().sum()
    return (1 - diagonal).square().sum() + config.redundancy * redundant
