"""The layers of encoders: rates by depth, and the class tokens of a transformer's last blocks."""

import pytest
import timm
import torch
from torch import nn

from cl.evaluations._shared.layers import last_blocks, parameters_by_depth
from cl.networks import backbones
from cl.networks.backbones.resnet import Config, Streams


def transformer() -> nn.Module:
    torch.manual_seed(0)
    network = timm.create_model("test_vit", num_classes=0).eval()
    network.fc_features = network.num_features
    return network


def names_by_depth(network: nn.Module) -> list[set[str]]:
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    return [{names[id(parameter)] for parameter in layer} for layer in parameters_by_depth(network)]


def test_a_residual_network_has_its_stem_and_its_blocks_as_layers() -> None:
    network = backbones.build(
        Config(kind="resnet", name="resnet18", width=1, stem="small", zero_init_residual=False)
    )
    layers = names_by_depth(network)
    assert len(layers) == 1 + 8
    assert layers[0] == {"conv1.weight", "bn1.weight", "bn1.bias"}
    assert all(name.startswith("layer1.1.") for name in layers[2])
    assert all(name.startswith("layer4.1.") for name in layers[-1])
    assert sum(map(len, layers)) == len(list(network.parameters()))


def test_each_of_two_networks_has_its_layers() -> None:
    streams = Streams(space="lab", mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    network = backbones.build(
        Config(
            kind="resnet", name="resnet18", width=1, stem="small", zero_init_residual=False, streams=streams
        )
    )
    layers = names_by_depth(network)
    assert len(layers) == 1 + 8
    assert {"networks.0.conv1.weight", "networks.1.conv1.weight"} < layers[0]


def test_a_transformer_has_its_embedding_and_its_blocks_as_layers() -> None:
    network = transformer()
    layers = names_by_depth(network)
    assert len(layers) == 1 + len(network.blocks)
    assert {"cls_token", "pos_embed", "patch_embed.proj.weight"} <= layers[0]
    assert all(name.startswith("blocks.1.") for name in layers[2])
    assert {"norm.weight", "norm.bias"} < layers[-1]


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
