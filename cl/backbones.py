"""Encoders: torchvision's residual networks without their classifier."""

from pathlib import Path
from typing import Literal

from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from cl.checkpoint import load_tensors
from cl.strict import Strict

BLOCKS: dict[str, tuple[type[BasicBlock | Bottleneck], list[int]]] = {
    "resnet18": (BasicBlock, [2, 2, 2, 2]),
    "resnet50": (Bottleneck, [3, 4, 6, 3]),
}


class Config(Strict):
    """Which network. `stem: small` is a 3x3 convolution of stride 1 and no pooling, for images of 32 to 96 pixels."""

    kind: Literal["resnet18", "resnet50"]
    width: Literal[1, 2, 4]
    stem: Literal["imagenet", "small"]
    zero_init_residual: bool


class Network(ResNet):
    """torchvision's network with every layer `width` times as wide (ResNet-50: 24, 94 and 375 million parameters)."""

    def __init__(self, config: Config) -> None:
        self.width = config.width
        super().__init__(*BLOCKS[config.kind], zero_init_residual=config.zero_init_residual)
        channels = 64 * config.width
        if config.stem == "small":
            self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
        elif config.width > 1:
            self.conv1 = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        if config.stem == "small" or config.width > 1:
            nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
            self.bn1 = nn.BatchNorm2d(channels)
        self.fc_features = channels * 8 * BLOCKS[config.kind][0].expansion
        self.fc: nn.Module = nn.Identity()

    def _make_layer(self, block, planes: int, *args, **kwargs) -> nn.Sequential:  # type: ignore[no-untyped-def]
        if planes == 64:  # the first stage: what the stem hands over
            self.inplanes = 64 * self.width
        return super()._make_layer(block, planes * self.width, *args, **kwargs)


def build(config: Config) -> Network:
    """The network, (N, 3, H, W) to (N, width): average-pooled features; `width` is its attribute `fc_features`."""
    return Network(config)


def load(config: Config, path: Path) -> Network:
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
