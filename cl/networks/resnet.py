"""torchvision's residual networks without their classifier, optionally wider or for small images."""

from typing import Any

import numpy as np
import torch
from scipy.fft import dct
from torch import Tensor, nn
from torchvision.models import resnet


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
