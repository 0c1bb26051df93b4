"""The maps of a network of timm that a detector's pyramid is built on."""

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cl.networks.backbones import reason_of

STRIDES = (4, 8, 16, 32)  # of P2 to P5, in pixels
PATCHES = (1, 2, *STRIDES)  # of plain transformers: powers of 2, from which P2 to P5 follow


class Level(NamedTuple):
    """A map: its number among the network's maps, from 0, its stride in pixels, its channels."""

    number: int
    stride: int
    channels: int


class FeatureMaps(nn.Module):
    """A network without what comes after its last map: (N, 3, H, W) to (N, channels, H / stride, W / stride).

    A hierarchical network gives a map for each of `STRIDES`: the deepest of that stride, as in FPN (Lin et
    al. 2017, sec. 3). A plain one, whose maps all have one stride, gives its last. Unlike in ViTDet's code,
    the network's own norm follows, so that the map consists of the tokens that pretraining pools.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.levels = levels(network)
        self.indices = [level.number for level in self.levels]
        self.plain = len(self.levels) == 1
        network.prune_intermediate_layers(self.indices, prune_norm=not self.plain)

    def forward(self, images: Tensor) -> list[Tensor]:
        network: Any = self.network
        maps: list[Tensor] = network.forward_intermediates(
            images, indices=self.indices, norm=self.plain, intermediates_only=True
        )
        return maps


def levels(network: Any) -> list[Level]:
    """The maps at `STRIDES`, or the last if all have one stride, from timm's `feature_info`."""
    found = [
        Level(number, each["reduction"], each["num_chs"]) for number, each in enumerate(network.feature_info)
    ]
    deepest = {level.stride: level for level in found}
    if set(STRIDES) <= set(deepest):
        return [deepest[stride] for stride in STRIDES]
    if len(deepest) == 1 and found[0].stride in PATCHES:
        return found[-1:]
    raise ValueError(f"it has maps of stride {', '.join(str(stride) for stride in deepest)}")


def check(network: nn.Module, side: int) -> None:
    """Raises ValueError, its reason, if a network on the meta device lacks the maps at a short side in px."""
    height = math.ceil(side / STRIDES[-1]) * STRIDES[-1]
    size = height, height + STRIDES[-1]  # detection images are rarely square
    try:
        maps = FeatureMaps(copy.deepcopy(network)).eval()
        with torch.no_grad():
            found = [tuple(each.shape) for each in maps(torch.empty(1, 3, *size, device="meta"))]
    except (AssertionError, AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ValueError(reason_of(error)) from None
    expected = [(1, level.channels, *(x // level.stride for x in size)) for level in maps.levels]
    if found != expected:
        raise ValueError(f"its maps are {found} where {expected} are needed")
