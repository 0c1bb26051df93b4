"""The class tokens of a transformer's last blocks, and the maps of a ResNet."""

import pytest
import timm
import torch
from torch import nn

from cl.evaluations._shared.layers import LastBlocks, PooledMaps
from cl.networks import backbones
from tests.support.backbones import residual


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
        wrapped = LastBlocks(network, 3)
        torch.testing.assert_close(wrapped(images), expected)
        torch.testing.assert_close(LastBlocks(network, 1)(images), network.forward_features(images)[:, 0])
    assert wrapped.fc_features == expected.shape[1]


def test_a_network_without_enough_blocks_is_refused() -> None:
    depth = len(transformer().blocks)
    with pytest.raises(ValueError, match=f"found {depth} such blocks; choose blocks={depth}$"):
        LastBlocks(transformer(), depth + 1)
    convolutional = timm.create_model("test_convnext", num_classes=0)
    with pytest.raises(ValueError, match="found 0 such blocks; choose blocks=null$"):
        LastBlocks(convolutional, 4)


@pytest.mark.parametrize(("name", "stem", "side"), [("resnet50", "imagenet", 224), ("resnet18", "small", 32)])
def test_the_maps_of_a_resnet_are_pooled_and_their_channels_standardised(name, stem, side) -> None:
    """Against hooks and torch's layers; at 224 px with OpenSelfSup's windows."""
    torch.manual_seed(0)
    network = backbones.build(residual(name, stem, width=0.125)).eval()
    reader, images = PooledMaps(network), torch.randn(3, 3, side, side)
    seen: list[torch.Tensor] = []
    for part in (network.bn1, network.layer1, network.layer2, network.layer3, network.layer4):
        part.register_forward_hook(lambda *arguments: seen.append(arguments[2]))
    with torch.no_grad():
        features = reader(images)
    seen[0] = seen[0].relu()
    if side == 224:
        windows = ((10, 10, 4), (16, 8, 0), (13, 5, 0), (8, 3, 0), (6, 1, 0))
        pools: list[nn.Module] = [nn.AvgPool2d(*window) for window in windows]
    else:
        pools = [nn.AdaptiveAvgPool2d(size) for size in (12, 6, 4, 3, 2)]
    pooled = [pool(x) for pool, x in zip(pools, seen, strict=True)]
    assert [x.shape[-1] for x in pooled] == [12, 6, 4, 3, 2]
    torch.testing.assert_close(features, torch.cat([x.flatten(1) for x in pooled], 1))
    assert reader.fc_features == features.shape[1]
    for head, x in zip(reader.classifiers(7), pooled, strict=True):
        standard = nn.BatchNorm2d(x.shape[1], affine=False)
        logits = standard(x).flatten(1) @ head.linear.weight.T + head.linear.bias
        torch.testing.assert_close(head(features), logits)
        torch.testing.assert_close(head.norm.running_mean, standard.running_mean)
