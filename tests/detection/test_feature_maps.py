"""The maps that detectors are built on."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cl.detection.feature_maps import FeatureMaps
from tests.support.backbones import HIERARCHICAL, PLAIN, build

CHANNELS = {  # of the maps at strides 4, 8, 16 and 32, or of the last map
    "test_convnext": [24, 32, 48, 64],
    "test_efficientnet": [24, 32, 48, 64],
    "test_resnet": [32, 48, 192, 96],
    "regnetx_002": [24, 56, 152, 368],
    "swin_tiny_patch4_window7_224": [96, 192, 384, 768],
    "vit": [16],
    "test_vit": [64],
}
# What each network does after its last map, to give its features.
ENDINGS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "test_convnext": lambda network, x: network.forward_head(network.norm_pre(x)),
    "test_efficientnet": lambda network, x: network.forward_head(network.bn2(network.conv_head(x))),
    "test_resnet": lambda network, x: network.forward_head(x),
    "regnetx_002": lambda network, x: network.forward_head(network.final_conv(x)),
    "swin_tiny_patch4_window7_224": lambda network, x: network.norm(x.permute(0, 2, 3, 1)).mean((1, 2)),
    "vit": lambda network, x: x.mean((2, 3)),
    "test_vit": lambda network, x: x.mean((2, 3)),
}


@pytest.mark.parametrize("name", HIERARCHICAL)
def test_hierarchical_networks_give_a_map_for_each_stride(name) -> None:
    maps = FeatureMaps(build(name))
    assert [level.stride for level in maps.levels] == [4, 8, 16, 32]
    expected = [(2, c, 96 // s, 64 // s) for c, s in zip(CHANNELS[name], (4, 8, 16, 32), strict=True)]
    assert [tuple(each.shape) for each in maps(torch.randn(2, 3, 96, 64))] == expected
    assert [level.channels for level in maps.levels] == CHANNELS[name]


@pytest.mark.parametrize(("name", "stride"), [("vit", 8), ("test_vit", 16)])
def test_plain_networks_give_their_last_map(name, stride) -> None:
    maps = FeatureMaps(build(name))
    assert [(level.stride, level.channels) for level in maps.levels] == [(stride, CHANNELS[name][0])]
    (last,) = maps(torch.randn(2, 3, 96, 64))
    assert last.shape == (2, CHANNELS[name][0], 96 // stride, 64 // stride)


@pytest.mark.parametrize("name", HIERARCHICAL | PLAIN)
def test_features_are_those_of_the_encoder(name) -> None:
    """The last map, and what follows it in the network, give the encoder's features."""
    changes = {"pool": "average"} if name == "test_vit" else {}
    network, images = build(name, **changes).eval(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        if name == "test_vit":  # timm has a norm after the average, and none before it
            tokens = network.forward_features(images)
            network.fc_norm = torch.nn.Identity()
            torch.testing.assert_close(network(images), tokens[:, 1:].mean(1))
        expected = network(images)
        last = FeatureMaps(build(name, **changes).eval())(images)[-1]
        torch.testing.assert_close(ENDINGS[name](network, last), expected, atol=1e-6, rtol=1e-5)
