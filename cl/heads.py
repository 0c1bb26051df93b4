"""Projectors and predictors: small multilayer perceptrons."""

from pydantic import Field
from torch import nn

from cl.strict import Strict


class Config(Strict):
    """Linear layers of the `hidden` widths, each followed by ReLU, then one to `out`; `norm`: batch norm before ReLU."""

    hidden: list[int]
    out: int = Field(gt=0)
    norm: bool
    norm_last: bool = Field(description="batch norm after the last layer too")


def build(config: Config, width: int) -> nn.Sequential:
    """(N, width) to (N, out). A layer before batch norm has no bias: the norm would remove it."""
    layers: list[nn.Module] = []
    for hidden in config.hidden:
        layers.append(nn.Linear(width, hidden, bias=not config.norm))
        if config.norm:
            layers.append(nn.BatchNorm1d(hidden))
        layers.append(nn.ReLU(inplace=True))
        width = hidden
    layers.append(nn.Linear(width, config.out, bias=not config.norm_last))
    if config.norm_last:
        layers.append(nn.BatchNorm1d(config.out))
    return nn.Sequential(*layers)
