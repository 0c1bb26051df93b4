"""Projectors and predictors: small multilayer perceptrons."""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from cl.runtime.base_config import BaseConfig


class Config(BaseConfig):
    """Linear layers of the `hidden` widths, each with an activation, then one to `out`.

    norm: batch norm before each activation.
    """

    hidden: list[int]
    activation: Literal["relu", "gelu"] = "relu"
    out: int = Field(gt=0)
    norm: bool
    last_norm: Literal["none", "affine", "plain", "cosine"] = Field(
        description="batch norm at the end; plain: without scale and shift; cosine: instead of it, the last "
        "layer gives the cosines of its inputs with its rows of weights"
    )
    last_bias: bool
    std: float | None = Field(
        gt=0, description="of normal initial weights; biases start at 0. null: PyTorch's initialisation"
    )

    @model_validator(mode="after")
    def _nothing_ignored(self) -> "Config":
        if self.last_bias and self.last_norm != "none":
            raise ValueError(
                f"last_bias=true has no effect before last_norm={self.last_norm}; choose last_bias=false"
            )
        if not self.hidden and (self.norm or self.activation != "relu"):
            raise ValueError(
                "hidden=[] leaves nothing for norm and activation to act on; choose norm=false and "
                "activation=relu"
            )
        return self


class NormLinear(nn.Linear):
    """The cosines of the inputs with rows of weights (CLD's NormLinear). The weights start as unit rows."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(width, out, bias=False)
        self.weight = nn.Parameter(F.normalize(self.weight.detach(), dim=1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=1), F.normalize(self.weight, dim=1))


class SideBySide(nn.Sequential):
    """A separate head for the features of each of two networks; (N, width) to (N, 2 out)."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__(*(build(config, width // 2) for _ in range(2)))

    def forward(self, features: Tensor) -> Tensor:
        halves = features.chunk(2, 1)
        return torch.cat([head(half) for head, half in zip(self, halves, strict=True)], 1)


def build(config: Config, width: int) -> nn.Sequential:
    """(N, width) to (N, out). A layer before batch norm has no bias, which the norm would remove."""
    layers: list[nn.Module] = []
    for hidden in config.hidden:
        layers.append(nn.Linear(width, hidden, bias=not config.norm))
        if config.norm:
            layers.append(nn.BatchNorm1d(hidden))
        layers.append(nn.GELU() if config.activation == "gelu" else nn.ReLU(inplace=True))
        width = hidden
    if config.last_norm == "cosine":
        layers.append(NormLinear(width, config.out))
    else:
        layers.append(nn.Linear(width, config.out, bias=config.last_bias))
    if config.last_norm in ("affine", "plain"):
        layers.append(nn.BatchNorm1d(config.out, affine=config.last_norm == "affine"))
    if config.std is not None:
        for layer in layers:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=config.std)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)
