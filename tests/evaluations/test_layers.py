"""The class tokens of a transformer's last blocks."""

import pytest
import timm
import torch
from torch import nn

from cl.evaluations._shared.layers import last_blocks


def transformer() -> nn.Module:
    torch.manual_seed(0)
    network = timm.create_model("test_vit", num_classes=0).eval()
    network.fc_features = network.num_features
    return network


def test_the_class_tokens_of_the_last_blocks_are_those_after_the_final_norm() -> None:
    network, images = transformer(), torch.randn(2, 3, 160, 160)
    seen: list[torch.Tensor] = []
    for block in network.blocks:
        block.register_forward_hook(lambda *arguments: seen.append(arguments[2]))
    with torch.no_grad():
        network(images)
        expected = torch.cat([network.norm(tokens)[:, 0] for tokens in seen[-3:]], 1)
        wrapped = last_blocks(network, 3)
        torch.testing.assert_close(wrapped(images), expected)
        torch.testing.assert_close(last_blocks(network, 1)(images), network.forward_features(images)[:, 0])
    assert wrapped.fc_features == expected.shape[1]


def test_a_network_without_enough_blocks_is_refused() -> None:
    depth = len(transformer().blocks)
    with pytest.raises(ValueError, match=f"found {depth} such blocks; choose blocks={depth}$"):
        last_blocks(transformer(), depth + 1)
    convolutional = timm.create_model("test_convnext", num_classes=0)
    with pytest.raises(ValueError, match="found 0 such blocks; choose blocks=null$"):
        last_blocks(convolutional, 4)
