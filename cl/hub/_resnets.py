"""ResNets by their tensors: torchvision's names, those of lightly, and what solo-learn changes."""

import re
from typing import Literal, cast

import torch
from torch import Tensor
from torchvision.models.resnet import BasicBlock, Bottleneck

from cl.hub._checkpoints import Recognised, fill
from cl.networks import backbones
from cl.networks.backbones.resnet import Config, Name
from cl.networks.resnet import BLOCKS, Network
from cl.runtime.tensor_files import below

HEADS = ("fc", "linear", "head", "classifier")
STAGES = [f"layer{number}" for number in range(1, 5)]


def prefixes(tensors: dict[str, Tensor]) -> list[str]:
    """The prefix of each ResNet's tensor names: what precedes `layer1.0.`, or the first numbered stage."""
    starts = (re.fullmatch(r"((?:.*\.)?)(?:layer1|\d+)\.0\.conv1\.weight", name) for name in tensors)
    return list(dict.fromkeys(match[1] for match in starts if match))


def recognise(tensors: dict[str, Tensor], prefix: str, metadata: dict[str, str], file: str) -> Recognised:
    """The ResNet below a prefix.

    Raises:
        ValueError: it is none of those known here, or has other tensors besides those of a classifier.
    """
    encoder = below(tensors, prefix)
    named = _rename(encoder)
    config = _config(named, file)
    network = backbones.build(config)
    fill(network, named, f"{config.name} with {config.stem} stem", file)
    deviation = ""
    if "2.0.conv1.weight" in encoder:
        # lightly's own ResNet applies ReLU as a function, which its nn.Sequential of children drops
        network.relu, deviation = torch.nn.Identity(), "without the first ReLU"
    if prefix == "backbone." and "classifier.weight" in tensors and config.stem == "small":
        cast(Network, network).conv1.padding = (2, 2)  # solo-learn
        deviation = "with wider padding of the first convolution"
    return Recognised(network, config, deviation)


def _rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """An encoder's tensors by torchvision's names, without a classifier or projector.

    Tensors that belong to no known head are kept: loading them must fail if this is a different network.
    """
    body = {name: tensor for name, tensor in tensors.items() if _child(name).split("_")[0] not in HEADS}
    if "layer1.0.conv1.weight" in tensors:
        return body
    # lightly numbers the children of the network: convolution, norm, (activation, pooling,) four stages
    numbers = sorted({int(_child(name)) for name in tensors if _child(name).isdecimal()})
    stages = [number for number in numbers if f"{number}.0.conv1.weight" in tensors]
    children = dict(zip(numbers, ("conv1", "bn1"), strict=False)) | dict(zip(stages, STAGES, strict=False))
    renamed = {}
    for name, tensor in body.items():
        child, _, rest = name.partition(".")
        child = children.get(int(child), child) if child.isdecimal() else child
        renamed[f"{child}.{rest}".replace(".shortcut.", ".downsample.")] = tensor
    return renamed


def _child(name: str) -> str:
    """The module of a network that a tensor belongs to."""
    return name.partition(".")[0]


def _config(tensors: dict[str, Tensor], file: str) -> Config:
    """The architecture that these tensors belong to.

    Raises:
        ValueError: it is not one of those known here.
    """
    first = tensors.get("conv1.weight")
    block = Bottleneck if "layer1.0.conv3.weight" in tensors else BasicBlock
    counts = [
        len({name.split(".")[1] for name in tensors if name.startswith(f"{stage}.")}) for stage in STAGES
    ]
    name = next((name for name, blocks in BLOCKS.items() if blocks == (block, counts)), None)
    channels = len(first) if first is not None and first.ndim == 4 else 0
    if name is None or first is None or channels not in (64, 128, 256):
        raise ValueError(
            f"{file} holds a network with {counts} blocks ({block.__name__}) and {channels} channels after "
            "its first convolution; expected resnet18, 34, 50, 101 or 152, with 64, 128 or 256 channels"
        )
    stem: Literal["small", "imagenet"] = "small" if first.shape[-1] == 3 else "imagenet"
    return Config(
        kind="resnet", name=cast(Name, name), width=channels // 64, stem=stem, zero_init_residual=False
    )
