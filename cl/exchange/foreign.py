"""Encoders that other programs have trained: residual networks in the checkpoints of the field, read without pickle's code."""

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from cl.features.extraction import fingerprint
from cl.networks import backbones
from cl.runtime.tensor_files import load_tensors

if TYPE_CHECKING:
    from cl.networks.resnet import Network

# Where a checkpoint keeps its tensors, and who writes what stands before the names of an encoder's.
CONTAINERS = ("state_dict", "model", "model_state_dict", "network")
ORIGINS = {
    "": "names of torchvision",
    "module.encoder_q.": "MoCo",
    "module.base_encoder.": "MoCo v3",
    "module.encoder.": "SimSiam",
    "backbone.": "solo-learn or lightly",
}
# The moving average beside the encoder that gradients train, which is the one that the papers evaluate.
TARGETS = re.compile(r"(encoder_k|momentum|target|teacher|ema)", re.IGNORECASE)
HEADS = ("fc", "linear", "head", "classifier")
STAGES = [f"layer{number}" for number in range(1, 5)]


class Found(NamedTuple):
    """An encoder in eval mode, which network it is, where it comes from, and a hash of its tensors."""

    network: "Network"
    config: backbones.Config
    origin: str
    sha256: str


def load(file: str, prefix: str | None = None) -> Found:
    """The encoder in a file; which network it is follows from its tensors, all of which must match, but for a classifier.

    Args:
        file: a checkpoint, or `torchvision:<network>[:<weights>]`, such as torchvision:resnet50:IMAGENET1K_V2.
        prefix: what stands before its tensors' names, where several encoders are in the file.

    Raises:
        ValueError: the file is missing, holds Python objects that only its own program could read, no network that is known
            here, or several.
    """
    tensors = _torchvision(file) if file.startswith("torchvision:") else _read(Path(file))
    encoders = {start: _below(tensors, start) for start in _prefixes(tensors)}
    if prefix is None:
        learnt = [start for start in encoders if not TARGETS.search(start)] or list(encoders)
        if len(learnt) != 1:
            found = (
                f"those below {', '.join(map(repr, learnt))}: say which with --prefix"
                if learnt
                else _kinds(tensors)
            )
            raise ValueError(f"{file} should hold one residual network, found {found}")
        prefix = learnt[0]
    if prefix not in encoders:
        raise ValueError(
            f"{file} has no encoder below {prefix!r}, only below {', '.join(map(repr, encoders)) or 'nothing'}"
        )
    named = _named(encoders[prefix])
    config = _config(named, file)
    network = backbones.build(config)
    counters = {
        name: torch.tensor(0) for name in network.state_dict() if name.endswith("num_batches_tracked")
    }
    try:  # files from before torch 0.4.1 do not count batches, and nothing here reads the count
        network.load_state_dict({**counters, **named})
    except RuntimeError as error:
        raise ValueError(
            f"{file} is no {config.kind} with {config.stem} stem: {' '.join(str(error).split())}"
        ) from error
    if (
        "2.0.conv1.weight" in encoders[prefix]
    ):  # lightly's own network in a Sequential has lost what is no module: its ReLU
        network.relu = torch.nn.Identity()
    if (
        prefix == "backbone." and "classifier.weight" in tensors and config.stem == "small"
    ):  # as solo-learn makes it
        network.conv1.padding = (2, 2)
    return Found(network.eval(), config, ORIGINS.get(prefix, f"names below {prefix!r}"), fingerprint(network))


def _torchvision(name: str) -> dict[str, Tensor]:
    from torchvision.models import get_model_weights

    _, network, *version = name.split(":")
    if network not in ("resnet18", "resnet50"):
        raise ValueError(f"{name}: choose torchvision:resnet18 or torchvision:resnet50")
    known = get_model_weights(network).__members__
    chosen = version[0] if version else "IMAGENET1K_V1"  # the papers' supervised network
    if chosen not in known:
        raise ValueError(f"{name}: {network} has the weights {', '.join(known)}")
    file = Path(torch.hub.get_dir()) / "checkpoints" / known[chosen].url.rsplit("/", 1)[1]
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(
                known[chosen].url, str(file), file.stem.rsplit("-", 1)[1], progress=False
            )
        except (OSError, RuntimeError) as error:
            raise ValueError(
                f"{name} cannot be downloaded ({error}); put {file.name} into {file.parent}"
            ) from error
    return _read(file)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"no file {path}: give a checkpoint, or torchvision:resnet50")
    if path.suffix == ".safetensors":
        return load_tensors(path)[0]
    try:
        with warnings.catch_warnings(action="ignore"):  # of formats that it then refuses
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes of the reader
        if match := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise ValueError(
                f"{path} holds more than tensors and plain values ({match[1]}), and reading that could run any code. If you "
                "trust it, keep its tensors alone: "
                f"python -c \"import torch; torch.save(torch.load('{path}', weights_only=False)['state_dict'], 'tensors.pth')\""
            ) from error
        raise ValueError(f"{path} is no checkpoint of torch, or a damaged one: get it again") from error
    for container in CONTAINERS:
        if isinstance(content, dict) and isinstance(content.get(container), dict):
            content = content[container]
            break
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected tensors by name")
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}


def _prefixes(tensors: dict[str, Tensor]) -> list[str]:
    """What stands before the names of each residual network: before `layer1.0.`, or before the first of numbered layers."""
    starts = (re.fullmatch(r"((?:.*\.)?)(?:layer1|\d+)\.0\.conv1\.weight", name) for name in tensors)
    return list(dict.fromkeys(match[1] for match in starts if match))


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _named(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """An encoder's tensors under torchvision's names, without a classifier or projector behind it.

    What no head explains is kept, so that another network is not taken for this one.
    """
    first = {name: name.partition(".")[0] for name in tensors}
    kept = {name: tensor for name, tensor in tensors.items() if first[name].split("_")[0] not in HEADS}
    if "layer1.0.conv1.weight" in tensors:
        return kept
    # lightly numbers the children of the network: convolution, norm, (activation, pooling,) four stages
    numbers = sorted({int(number) for number in first.values() if number.isdecimal()})
    stages = [number for number in numbers if f"{number}.0.conv1.weight" in tensors]
    children = dict(zip(numbers, ("conv1", "bn1"), strict=False)) | dict(zip(stages, STAGES, strict=False))
    names = {str(number): name for number, name in children.items()}
    return {
        ".".join([names.get(first[name], first[name]), name.partition(".")[2]]).replace(
            ".shortcut.", ".downsample."
        ): tensor
        for name, tensor in kept.items()
    }


def _config(tensors: dict[str, Tensor], file: str) -> backbones.Config:
    """Which network these tensors are."""
    blocks = [
        len({name.split(".")[1] for name in tensors if name.startswith(f"{stage}.")}) for stage in STAGES
    ]
    deep = "layer1.0.conv3.weight" in tensors
    kinds: dict[tuple, Literal["resnet18", "resnet50"]] = {
        (False, 2, 2, 2, 2): "resnet18",
        (True, 3, 4, 6, 3): "resnet50",
    }
    kind, first = kinds.get((deep, *blocks)), tensors.get("conv1.weight")
    width, rest = divmod(len(first), 64) if first is not None and first.ndim == 4 else (0, 0)
    if kind is None or first is None or rest or width not in (1, 2, 4):
        block = "bottleneck" if deep else "basic"
        raise ValueError(
            f"{file} holds a network with {blocks} {block} blocks and {0 if first is None else len(first)} channels after its "
            "first convolution; known are resnet18 and resnet50, 64, 128 or 256 channels wide"
        )
    stem: Literal["small", "imagenet"] = "small" if first.shape[-1] == 3 else "imagenet"
    return backbones.Config(kind=kind, width=width, stem=stem, zero_init_residual=False)


def _kinds(tensors: dict[str, Tensor]) -> str:
    return f"tensors such as {next(iter(tensors))}" if tensors else "no tensors at all"
