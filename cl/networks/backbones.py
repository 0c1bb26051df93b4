"""Encoders: torchvision's residual networks without their classifier."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cl.runtime.base_config import BaseConfig
from cl.runtime.tensor_files import load_tensors

if TYPE_CHECKING:
    from cl.networks.resnet import Network


class Config(BaseConfig):
    """Which network. `stem: small` is a 3x3 convolution of stride 1 and no pooling, for images of 32 to 96 pixels."""

    kind: Literal["resnet18", "resnet50"]
    width: Literal[1, 2, 4]
    stem: Literal["imagenet", "small"]
    zero_init_residual: bool


def build(config: Config) -> "Network":
    """The network, (N, 3, H, W) to (N, width): average-pooled features; `width` is its attribute `fc_features`."""
    from cl.networks.resnet import (
        Network,
    )  # torchvision takes seconds to load, which checking parameters need not wait for

    return Network(config)


def load(config: Config, path: Path) -> "Network":
    """A finished backbone in eval mode; every tensor of the file must match.

    Raises:
        ValueError: the file is missing, damaged, or holds another network.
    """
    network = build(config)
    tensors, _ = load_tensors(path)
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"{path} does not hold a {config.kind} with {config.stem} stem: {error}") from error
    return network.eval()
