"""Encoders trained by other programs: ResNets from common checkpoints, read without running pickled code."""

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import torch
from torch import Tensor

from cl.exchange import published
from cl.networks import backbones
from cl.networks.backbones.resnet import Config, Name
from cl.runtime.tensor_files import below, fingerprint, load_tensors

if TYPE_CHECKING:
    from cl.networks.resnet import Network

CONTAINERS = ("state_dict", "model", "model_state_dict", "network")  # keys that hold a checkpoint's tensors
ORIGINS = {  # by the prefix of an encoder's tensor names
    "": "torchvision names",
    "module.encoder_q.": "MoCo",
    "module.base_encoder.": "MoCo v3",
    "module.encoder.": "SimSiam",
    "backbone.": "solo-learn or lightly",
}
# Prefixes of target encoders. The papers evaluate the online encoder instead.
TARGETS = re.compile(r"(encoder_k|momentum|target|teacher|ema)", re.IGNORECASE)
HEADS = ("fc", "linear", "head", "classifier")
STAGES = [f"layer{number}" for number in range(1, 5)]


class ForeignEncoder(NamedTuple):
    """An encoder in eval mode, its configuration, its origin as far as known, and a hash of its tensors.

    metadata: of a safetensors file; empty for others.
    deviation: how the network differs from ours of the same configuration.
    """

    network: "Network"
    config: Config
    origin: str
    sha256: str
    metadata: dict[str, str]
    deviation: str = ""


def load(file: str, prefix: str | None = None) -> ForeignEncoder:
    """Read the encoder in a file.

    The architecture is inferred from the tensors. All must match, except those of a classifier.

    Args:
        file: a checkpoint, or a name of published weights (`cl.exchange.published`), as torchvision:resnet50.
        prefix: the prefix of its tensor names, if the file holds several encoders.

    Raises:
        ValueError: the file is missing, holds Python objects that only its own program can read, or does not
            hold exactly one network of a known architecture.
    """
    path, licence = published.fetch(file) if published.is_name(file) else (Path(file), None)
    tensors, metadata = _read(path)
    return recognise(tensors, metadata | ({"licence": licence} if licence else {}), file, prefix)


def recognise(
    tensors: dict[str, Tensor], metadata: dict[str, str], file: str, prefix: str | None = None
) -> ForeignEncoder:
    """The encoder in a file, from the file's tensors; see `load`."""
    prefix = _choose_prefix(tensors, file, prefix)
    encoder = below(tensors, prefix)
    named = _rename(encoder)
    config = _config(named, file)
    network = _build(config, named, file)
    deviation = ""
    if "2.0.conv1.weight" in encoder:
        # lightly's own ResNet applies ReLU as a function, which its nn.Sequential of children drops
        network.relu, deviation = torch.nn.Identity(), "without the first ReLU"
    if prefix == "backbone." and "classifier.weight" in tensors and config.stem == "small":
        network.conv1.padding, deviation = (2, 2), "with wider padding of the first convolution"  # solo-learn
    origin = ORIGINS.get(prefix, f"names below {prefix!r}")
    return ForeignEncoder(network.eval(), config, origin, fingerprint(network), metadata, deviation)


def _choose_prefix(tensors: dict[str, Tensor], file: str, prefix: str | None) -> str:
    """The given prefix if an encoder has it; if none is given, that of the only online encoder.

    Raises:
        ValueError: no encoder matches, or several do.
    """
    prefixes = _prefixes(tensors)
    if prefixes == ["networks.0.", "networks.1."]:
        raise ValueError(
            f"{file} holds the two networks of a backbone with streams, which only the pipeline's own "
            "evaluations and pipeline.export onnx take"
        )
    if prefix is not None:
        if prefix not in prefixes:
            found = ", ".join(map(repr, prefixes)) or "nothing"
            raise ValueError(f"{file} holds no encoder below {prefix!r}, only below {found}")
        return prefix
    online = [start for start in prefixes if not TARGETS.search(start)] or prefixes
    if len(online) == 1:
        return online[0]
    if online:
        prefixes_found = ", ".join(map(repr, online))
        found = f"those below {prefixes_found}; choose one with --prefix, prefix= or init=FILE:PREFIX"
    else:
        found = f"tensors such as {next(iter(tensors))}" if tensors else "no tensors at all"
    raise ValueError(f"{file} should hold one residual network, found {found}")


def _build(config: Config, tensors: dict[str, Tensor], file: str) -> "Network":
    network = cast("Network", backbones.build(config))
    # files from before torch 0.4.1 lack the counters of batches, which nothing here reads
    counters = {
        name: torch.tensor(0) for name in network.state_dict() if name.endswith("num_batches_tracked")
    }
    try:
        network.load_state_dict({**counters, **tensors})
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{file} is not a {config.name} with {config.stem} stem: {reason}") from error
    return network


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors in a file, and its metadata."""
    if not path.is_file():
        raise ValueError(
            f"{path} does not exist; give a checkpoint, torchvision:resnet50 or timm:resnet50.a1_in1k"
        )
    if path.suffix == ".safetensors":
        return load_tensors(path)
    try:
        with warnings.catch_warnings(action="ignore"):  # about formats that torch.load then refuses
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can make the reader raise anything
        raise ValueError(_unreadable(path, str(error))) from error
    for container in CONTAINERS:
        if isinstance(content, dict) and isinstance(content.get(container), dict):
            content = content[container]
            break
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected named tensors")
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}, {}


def _unreadable(path: Path, error: str) -> str:
    """Why torch.load cannot read a file, and what to do."""
    if match := re.search(r"GLOBAL ([\w.]+)", error):
        extract = (
            f"x = torch.load('{path}', weights_only=False); x = x.state_dict() if hasattr(x, 'state_dict') "
            "else x.get('state_dict', x); torch.save(x, 'tensors.pth')"
        )
        return (
            f"{path} holds more than tensors and plain values ({match[1]}), and reading it could run "
            f'arbitrary code; if you trust it, extract its tensors: python -c "import torch; {extract}"'
        )
    return f"{path} is not a torch checkpoint, or it is damaged; download it again"


def _prefixes(tensors: dict[str, Tensor]) -> list[str]:
    """The prefix of each ResNet's tensor names: what precedes `layer1.0.`, or the first numbered stage."""
    starts = (re.fullmatch(r"((?:.*\.)?)(?:layer1|\d+)\.0\.conv1\.weight", name) for name in tensors)
    return list(dict.fromkeys(match[1] for match in starts if match))


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
    name = _name(tensors)
    channels = len(first) if first is not None and first.ndim == 4 else 0
    if name is None or first is None or channels not in (64, 128, 256):
        raise ValueError(
            f"{file} holds a network with {_block_counts(tensors)} {_block(tensors)} blocks and "
            f"{channels} channels after its first "
            "convolution; expected resnet18, 34, 50, 101 or 152, with 64, 128 or 256 channels"
        )
    stem: Literal["small", "imagenet"] = "small" if first.shape[-1] == 3 else "imagenet"
    return Config(kind="resnet", name=name, width=channels // 64, stem=stem, zero_init_residual=False)


def _name(tensors: dict[str, Tensor]) -> Name | None:
    match _block(tensors), _block_counts(tensors):
        case "basic", [2, 2, 2, 2]:
            return "resnet18"
        case "basic", [3, 4, 6, 3]:
            return "resnet34"
        case "bottleneck", [3, 4, 6, 3]:
            return "resnet50"
        case "bottleneck", [3, 4, 23, 3]:
            return "resnet101"
        case "bottleneck", [3, 8, 36, 3]:
            return "resnet152"
    return None


def _block(tensors: dict[str, Tensor]) -> str:
    return "bottleneck" if "layer1.0.conv3.weight" in tensors else "basic"


def _block_counts(tensors: dict[str, Tensor]) -> list[int]:
    """The number of residual blocks in each stage."""
    return [len({name.split(".")[1] for name in tensors if name.startswith(f"{stage}.")}) for stage in STAGES]
