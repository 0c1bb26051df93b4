"""The parameters of networks by depth."""

import timm
from torch import nn

from cl.networks import backbones
from cl.networks.backbones.resnet import Streams
from cl.networks.depth import parameters_by_depth
from tests.support.backbones import residual


def names_by_depth(network: nn.Module) -> list[set[str]]:
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    return [{names[id(parameter)] for parameter in layer} for layer in parameters_by_depth(network)]


def test_a_residual_network_has_its_stem_and_its_blocks_as_layers() -> None:
    network = backbones.build(residual())
    layers = names_by_depth(network)
    assert len(layers) == 1 + 8
    assert layers[0] == {"conv1.weight", "bn1.weight", "bn1.bias"}
    assert all(name.startswith("layer1.1.") for name in layers[2])
    assert all(name.startswith("layer4.1.") for name in layers[-1])
    assert sum(map(len, layers)) == len(list(network.parameters()))


def test_each_of_two_networks_has_its_layers() -> None:
    streams = Streams(space="lab", mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    layers = names_by_depth(backbones.build(residual(streams=streams)))
    assert len(layers) == 1 + 8
    assert {"networks.0.conv1.weight", "networks.1.conv1.weight"} < layers[0]


def test_a_transformer_has_its_embedding_and_its_blocks_as_layers() -> None:
    network = timm.create_model("test_vit", num_classes=0)
    layers = names_by_depth(network)
    assert len(layers) == 1 + len(network.blocks)
    assert {"cls_token", "pos_embed", "patch_embed.proj.weight"} <= layers[0]
    assert all(name.startswith("blocks.1.") for name in layers[2])
    assert {"norm.weight", "norm.bias"} < layers[-1]
