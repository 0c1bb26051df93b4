"""The pyramids P2 to P6 that FPN detectors are built on, for each kind of backbone."""

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torchvision.models.convnext import LayerNorm2d
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.resnet import ResNet
from torchvision.ops import Conv2dNormActivation, FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from cl.detection.feature_maps import STRIDES, FeatureMaps
from cl.networks.backbones import Backbone
from cl.networks.batch_norm import has_batch_norm

CHANNELS = 256  # of every level
LEVELS = ("0", "1", "2", "3")  # torchvision's names of P2 to P5; P6, "pool", is P5 subsampled


class Pyramid(nn.Module):
    """A backbone and the pyramid on its maps: (N, 3, H, W) to P2 to P6 by name, (N, CHANNELS, H / s, W / s).

    The strides s are 4, 8, 16, 32 and 64; H and W are multiples of 32. Has the names of torchvision's
    `BackboneWithFPN`.
    """

    def __init__(self, body: FeatureMaps, fpn: nn.Module) -> None:
        super().__init__()
        self.body, self.fpn, self.out_channels = body, fpn, CHANNELS

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        levels: dict[str, Tensor] = self.fpn(OrderedDict(zip(LEVELS, self.body(images), strict=False)))
        return levels


class SimplePyramid(nn.Module):
    """The simple feature pyramid on the last map of a plain transformer (ViTDet, Li et al. 2022, sec. 3).

    The map, of this stride and channels, is scaled to each of the strides 4, 8, 16 and 32 by itself, then a
    1x1 and a 3x3 convolution follow, each with a norm.
    """

    def __init__(self, stride: int, channels: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.levels = nn.ModuleList(_level(stride, channels, to, norm) for to in STRIDES)
        self.subsample = LastLevelMaxPool()

    def forward(self, maps: dict[str, Tensor]) -> dict[str, Tensor]:
        (last,) = maps.values()
        levels, names = self.subsample([level(last) for level in self.levels], [], list(LEVELS))
        return OrderedDict(zip(names, levels, strict=True))


def _level(stride: int, channels: int, to: int, norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """Transposed convolutions, each doubling the sides and halving the channels, or max pooling."""
    layers: list[nn.Module] = []
    for step in range(round(math.log2(stride / to))):
        if step:
            layers += [norm(channels), nn.GELU()]
        layers.append(nn.ConvTranspose2d(channels, channels // 2, 2, stride=2))
        channels //= 2
    if to > stride:
        layers.append(nn.MaxPool2d(to // stride))
    for inputs, kernel in ((channels, 1), (CHANNELS, 3)):
        layers.append(Conv2dNormActivation(inputs, CHANNELS, kernel, norm_layer=norm, activation_layer=None))
    return nn.Sequential(*layers)


def build(backbone: Backbone) -> nn.Module:
    """The pyramid on a backbone: ViTDet's on a plain transformer, FPN on all others."""
    norm = norm_for(backbone)
    if isinstance(backbone, ResNet):
        layers = {f"layer{i}": name for i, name in enumerate(LEVELS, 1)}
        widths = [backbone.fc_features // share for share in (8, 4, 2, 1)]
        return BackboneWithFPN(backbone, layers, widths, CHANNELS, norm_layer=norm)
    body = FeatureMaps(backbone)
    if body.plain:
        return Pyramid(body, SimplePyramid(body.levels[0].stride, body.levels[0].channels, norm))
    widths = [level.channels for level in body.levels]
    return Pyramid(body, FeaturePyramidNetwork(widths, CHANNELS, LastLevelMaxPool(), norm))


def norm_for(backbone: Backbone) -> Callable[[int], nn.Module]:
    """The norm of pyramid and head: batch norm where the backbone has it, or else ViTDet's layer norm."""
    return nn.BatchNorm2d if has_batch_norm(backbone) else partial(LayerNorm2d, eps=1e-6)
