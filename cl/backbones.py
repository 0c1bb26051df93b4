"""Encoders: torchvision's residual networks without their classifier."""

from pathlib import Path
from typing import Literal

from torch import nn
from torchvision.models import resnet
from torchvision.models.resnet import ResNet

from cl.checkpoint import load_tensors
from cl.strict import Strict


class Config(Strict):
    """Which network. `stem: small` is a 3x3 convolution of stride 1 and no pooling, for images of 32 to 96 pixels."""

    kind: Literal["resnet18", "resnet50"]
    stem: Literal["imagenet", "small"]
    zero_init_residual: bool


def build(config: Config) -> ResNet:
    """The network, (N, 3, H, W) to (N, width): average-pooled features; `width` is its attribute `fc_features`."""
    network = getattr(resnet, config.kind)(zero_init_residual=config.zero_init_residual)
    network.fc_features = network.fc.in_features
    network.fc = nn.Identity()
    if config.stem == "small":
        network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        network.maxpool = nn.Identity()
    return network


def load(config: Config, path: Path) -> ResNet:
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
