"""ResNets recognised by their tensors, with the names of torchvision, lightly and others."""

import re
from collections.abc import Callable
from typing import Any, Literal, cast

from torch import Tensor, nn

from cl.encoders._checkpoints import LIGHTNING, Converted
from cl.networks.backbones.resnet import BLOCKS, WIDTHS, Config, Name
from cl.runtime.base_config import one_of
from cl.runtime.tensor_files import below

# The first or last word, without digits, in the name of a module that follows the features.
HEADS = {"fc", "linear", "head", "heads", "classifier", "projection", "projector", "prediction", "predictor"}
HEADS |= {"proj", "pred", "prototypes", "mlp", "neck", "logits", "contrast", "classif"}
OURS = ("network", "parameters", "transform")  # metadata that only our files have
STAGES = [f"layer{number}" for number in range(1, 5)]
# How encoders differ from ours, and what makes ours equal.
MENDS: dict[str, Callable[[Any], None]] = {
    # lightly's own ResNet applies ReLU as a function, which an nn.Sequential of its children loses
    (NO_RELU := "without the first ReLU"): lambda network: setattr(network, "relu", nn.Identity()),
    (WIDE := "with wider padding of the first convolution"): lambda network: setattr(
        network.conv1, "padding", (2, 2)
    ),
}


def converted(tensors: dict[str, Tensor], prefix: str, metadata: dict[str, str], file: str) -> Converted:
    """The ResNet below a prefix; raises ValueError if it has an unknown architecture."""
    named = _rename(below(tensors, prefix))
    config = _config(named, file)
    deviations = [NO_RELU] if f"{prefix}2.0.conv1.weight" in tensors else []
    padding = _padding(tensors, prefix, metadata) if config.stem == "small" else 1
    doubt = ""
    if padding == 2:
        deviations.append(WIDE)
    elif padding is None:
        deviations.append(f"perhaps {WIDE}")
        doubt = (
            f"{file} does not show whether its first 3x3 convolution pads images by 1 pixel, as most do, "
            'or by 2, as solo-learn; write {"model_args": {"stem_padding": 1}} or 2 to config.json beside it'
        )
    return Converted(config, named, deviations, doubt)


def _padding(tensors: dict[str, Tensor], prefix: str, metadata: dict[str, str]) -> int | None:
    """The padding of a 3x3 stem, from the description or the program that wrote the file; None if unknown.

    solo-learn pads by 2; it trains with Lightning, and saves a classifier and a head beside the encoder.
    Others pad by 1: those with modules named `shortcut` (kuangliu's, SupContrast, lightly), and those that
    number children without a pooling layer before the first stage (lightly, leftthomas, MoCo's notebook).
    """
    if "stem_padding" in metadata:
        return int(metadata["stem_padding"])
    encoder = below(tensors, prefix)
    is_numbered = any(f"{number}.0.conv1.weight" in encoder for number in (2, 3)) and "0.weight" in encoder
    if is_numbered or any(key in metadata for key in OURS) or any(".shortcut." in name for name in encoder):
        return 1
    has_head = any(name.startswith(("projector.", "head.")) for name in tensors)
    return 2 if LIGHTNING in metadata and has_head and "classifier.weight" in tensors else None


def _rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """An encoder's tensors by torchvision's names, without a classifier or projector.

    Unknown tensors stay, so that loading fails if this is a different network.
    """
    # Numbered children are: convolution, norm, (activation, pooling,) four stages, (pooling, head)
    numbers = sorted({int(child) for name in tensors if (child := name.partition(".")[0]).isdecimal()})
    stages = [number for number in numbers if f"{number}.0.conv1.weight" in tensors]
    children = dict(zip(numbers, ("conv1", "bn1"), strict=False)) | dict(zip(stages, STAGES, strict=False))
    heads = {
        number
        for number in numbers
        if number > max(stages, default=number)
        if max(tensor.ndim for tensor in below(tensors, f"{number}.").values()) == 2  # linear layers
    }
    renamed = {}
    for name, tensor in tensors.items():
        child, _, rest = name.partition(".")
        if child.isdecimal():
            if int(child) in heads:
                continue
            child = children.get(int(child), child)
        elif is_head(name):
            continue
        renamed[f"{child}.{rest}".replace(".shortcut.", ".downsample.")] = tensor
    return renamed


def is_head(name: str) -> bool:
    """Whether a tensor's name begins with that of a module that follows the features."""
    words = re.sub(r"\d+", "", name.partition(".")[0]).split("_")
    return bool({words[0], words[-1]} & HEADS)


def _config(tensors: dict[str, Tensor], file: str) -> Config:
    """The architecture of these tensors; raises ValueError if it is unknown."""
    first = tensors.get("conv1.weight")
    block = "Bottleneck" if "layer1.0.conv3.weight" in tensors else "BasicBlock"
    counts = [
        len({name.split(".")[1] for name in tensors if name.startswith(f"{stage}.")}) for stage in STAGES
    ]
    name = next((name for name, blocks in BLOCKS.items() if blocks == (block, counts)), None)
    channels = len(first) if first is not None and first.ndim == 4 else 0
    if name is None or first is None or channels / 64 not in WIDTHS:
        raise ValueError(
            f"{file} holds a network with {counts} blocks ({block}) and {channels} channels after "
            "its first convolution; expected resnet10, 18, 34, 50, 101 or 152, with "
            f"{one_of([str(int(64 * width)) for width in WIDTHS])} channels"
        )
    stem: Literal["small", "imagenet"] = "small" if first.shape[-1] == 3 else "imagenet"
    return Config(
        kind="resnet",
        name=cast(Name, name),
        width=channels / 64,
        stem=stem,
        zero_init_residual=False,
        channels=first.shape[1],
    )
