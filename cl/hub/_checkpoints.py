"""Files of weights by any program: named tensors, and what they say about the network; no code is run."""

import argparse
import json
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cl.hub import _descriptions
from cl.networks.backbones import Backbone, BackboneConfig
from cl.runtime.tensor_files import load_tensors

CONTAINERS = ("state_dict", "model", "model_state_dict", "network")  # keys that hold a checkpoint's tensors
PAIR = ("student", "teacher")  # networks that DINO and DINOv2 save side by side
# Plain values in checkpoints: the arguments of a program, and numbers of a schedule that NumPy computed.
PLAIN = [argparse.Namespace, np.dtype, np.dtypes.Float64DType]
SCALAR: Any = np.float64().__reduce__()[0]
SCALARS = [(SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]  # NumPy 1 and 2


class Recognised(NamedTuple):
    """A network with its weights, its configuration, and how it differs from ours of that configuration."""

    network: Backbone
    config: BackboneConfig
    deviation: str = ""


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors in a file; its metadata, with what timm's config.json beside it says.

    Raises:
        ValueError: the file is missing or damaged, or holds objects that only its own program can read.
    """
    if not path.is_file():
        raise ValueError(
            f"{path} does not exist; give a checkpoint, torchvision:resnet50 or timm:resnet50.a1_in1k"
        )
    tensors, metadata = load_tensors(path) if path.suffix == ".safetensors" else _read_pickled(path)
    return tensors, _descriptions.metadata(_description(path, metadata)) | metadata


def _description(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    """What timm's config.json says; without one, the architecture that the file itself names."""
    try:
        description = json.loads((path.parent / "config.json").read_bytes())
    except (OSError, ValueError):  # there is none, or it is another program's
        description = None
    return description if isinstance(description, dict) else dict(metadata)


def _read_pickled(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # about formats that torch.load then refuses
            torch.serialization.safe_globals([*PLAIN, *SCALARS]),
        ):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can make the reader raise anything
        raise ValueError(_unreadable(path, str(error))) from error
    named = _named(content)
    if not isinstance(named, dict):
        raise ValueError(f"{path} holds a {type(named).__name__}, expected named tensors")
    architecture = content.get("arch")
    metadata = {"architecture": architecture} if isinstance(architecture, str) else {}
    return {str(name): value for name, value in named.items() if isinstance(value, Tensor)}, metadata


def _named(content: Any) -> Any:
    """The named tensors in a checkpoint, out of their container; a student's and a teacher's side by side."""
    if not isinstance(content, dict):
        return content
    networks = {part: content[part] for part in PAIR if isinstance(content.get(part), dict)}
    if networks:
        return {f"{part}.{name}": value for part, named in networks.items() for name, value in named.items()}
    held = (content[container] for container in CONTAINERS if isinstance(content.get(container), dict))
    return next(held, content)


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


def fill(network: Backbone, tensors: dict[str, Tensor], what: str, file: str) -> None:
    """Load an encoder's tensors, all of them, into a network.

    Raises:
        ValueError: names or shapes differ, so that the file does not hold `what`.
    """
    expected = network.state_dict()
    # files from before torch 0.4.1 lack the counters of batches, which nothing here reads
    counters = {name: torch.tensor(0) for name in expected if name.endswith("num_batches_tracked")}
    tensors = counters | tensors
    differences = [
        *(f"has {name}, which such a network lacks" for name in tensors.keys() - expected.keys()),
        *(f"lacks {name}" for name in expected.keys() - tensors.keys()),
        *(
            f"has {name} of shape {list(tensors[name].shape)}, expected {list(tensor.shape)}"
            for name, tensor in expected.items()
            if name in tensors and tensors[name].shape != tensor.shape
        ),
    ]
    if differences:
        more = f" (and {len(differences) - 1} more differences)" if differences[1:] else ""
        raise ValueError(
            f"{file} is not a {what}: it {min(differences)}{more}; for another network of timm, put timm's "
            "config.json beside the file"
        )
    network.load_state_dict(tensors)
