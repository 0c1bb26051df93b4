"""torchvision's residual networks without their classifier: wider, for small images, or two side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.fft import dct
from torch import Tensor, nn
from torchvision.models import resnet

from cl.networks.backbones import Backbone, Colours

CHANNELS = (1, 2)  # of the two networks' inputs
# CIE 1931, white of D65, and ITU-R 601, as in scikit-image.
XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))
WHITE = (0.95047, 1.0, 1.08883)
YCBCR = ((65.481, 128.553, 24.966), (-37.797, -74.203, 112.0), (112.0, -93.786, -18.214))
OFFSET = (16.0, 128.0, 128.0)
# Mean and standard deviation of each channel, as in CMC's code; in Lab, the centre and half of its range.
NORMALISATION = {
    "lab": ((50.0, 6.025, -6.6895), (50.0, 92.208, 101.1675)),
    "ycbcr": ((116.151, 121.080, 132.342), (109.5, 111.855, 111.964)),
}


class Network(resnet.ResNet):
    """The network for images of `channels` channels (ResNet-50 of width 1, 2, 4: 24, 94, 375 M weights).

    A cosine stem has fixed cosine patterns as weights; random ones fill it up.

    config: of `cl.networks.backbones.resnet`.
    kind, counts: the name of torchvision's block, and the number of blocks in each stage.
    """

    def __init__(self, config: Any, kind: str, counts: list[int], channels: int = 3) -> None:
        self.name, self.width = config.name, config.width
        block = getattr(resnet, kind)
        super().__init__(block, counts, zero_init_residual=config.zero_init_residual)
        first, small = int(64 * self.width), config.stem == "small"
        if small:
            self.maxpool = nn.Identity()
        if small or (self.width, channels) != (1, 3):
            side, stride = (3, 1) if small else (7, 2)
            self.conv1 = nn.Conv2d(channels, first, side, stride, padding=side // 2, bias=False)
            nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
            self.bn1 = nn.BatchNorm2d(first)
        if config.cosine_stem:
            patterns = cosine_patterns(*self.conv1.weight.shape[1:])[:first]
            self.conv1.requires_grad_(False).weight[: len(patterns)] = patterns
        self.fc_features = first * 8 * block.expansion
        self.fc: nn.Module = nn.Identity()

    def forward_features(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to the last map, before pooling."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))

    def _make_layer(self, block, planes: int, *args, **kwargs) -> nn.Sequential:  # type: ignore[no-untyped-def]
        if planes == 64:  # the first stage's input has the stem's channels
            self.inplanes = int(64 * self.width)
        return super()._make_layer(block, int(planes * self.width), *args, **kwargs)


def cosine_patterns(channels: int, height: int, width: int) -> Tensor:
    """(C * H * W, C, H, W): the orthonormal basis of the cosine transform (DCT-II), smooth gray ones first.

    They are close to the principal components of patches of photographs (Ahmed et al. 1974).
    """
    waves = [torch.from_numpy(dct(np.eye(side), axis=0, norm="ortho")) for side in (channels, height, width)]
    basis = torch.einsum("cx,hy,wz->chwxyz", *waves).flatten(0, 2)
    colour, row, column = torch.cartesian_prod(*map(torch.arange, (channels, height, width))).T
    return basis[(2 * (colour > 0) + row + column).argsort(stable=True)].float()


class TwoStreams(Backbone):
    """Two networks' features side by side: one sees an image's lightness, the other its two colours (CMC).

    Images are normalised RGB, as for every other backbone.

    networks: of lightness and of colour, for images of `CHANNELS`.
    space: lab or ycbcr.
    mean, std: the normalisation of the input images.
    """

    def __init__(self, networks: Sequence[Backbone], space: str, mean: Colours, std: Colours) -> None:
        super().__init__()
        self.space = space
        self.networks = nn.ModuleList(networks)
        self.fc_features = sum(network.fc_features for network in networks)
        # In float64, for encoders in float64.
        values = torch.tensor([mean, std], dtype=torch.float64).view(2, 3, 1, 1)
        self.mean, self.std = (nn.Buffer(value, persistent=False) for value in values)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, `fc_features`): first the features of lightness, then of colour."""
        rgb = (images * self.std.to(images) + self.mean.to(images)).clamp(0, 1)
        inputs = normalised(rgb, self.space).split(CHANNELS, 1)
        return torch.cat([network(x) for network, x in zip(self.networks, inputs, strict=True)], 1)


def normalised(rgb: Tensor, space: str) -> Tensor:
    """RGB in [0, 1] (N, 3, H, W) to the channels of `space`, normalised as in CMC."""
    channels = (lab(rgb) if space == "lab" else ycbcr(rgb)).split(1, 1)
    constants = zip(channels, *NORMALISATION[space], strict=True)
    return torch.cat([(channel - mean) / std for channel, mean, std in constants], 1)


def lab(rgb: Tensor) -> Tensor:
    """CIE L*a*b* of sRGB in [0, 1]: L in [0, 100]."""
    linear = torch.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    mixed = _mixed(linear, XYZ)
    ratios = torch.cat([channel / white for channel, white in zip(mixed, WHITE, strict=True)], 1)
    root = torch.where(ratios > 0.008856, ratios.clamp(min=0.008856) ** (1 / 3), 7.787 * ratios + 16 / 116)
    x, y, z = root.split(1, 1)
    return torch.cat([116 * y - 16, 500 * (x - y), 200 * (y - z)], 1)


def ycbcr(rgb: Tensor) -> Tensor:
    """Y in [16, 235], Cb and Cr in [16, 240] of RGB in [0, 1]."""
    return torch.cat([x + offset for x, offset in zip(_mixed(rgb, YCBCR), OFFSET, strict=True)], 1)


def _mixed(x: Tensor, matrix: Sequence[Sequence[float]]) -> list[Tensor]:
    """Sums of the channels (N, 3, H, W), weighted by rows of the matrix, (N, 1, H, W) each.

    `@` might round to TF32. Constants stay numbers: copying them to a GPU would make the CPU wait.
    """
    red, green, blue = x.split(1, 1)
    return [r * red + g * green + b * blue for r, g, b in matrix]
