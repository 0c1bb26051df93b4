"""Files of weights by any program: named tensors and metadata, read without running code."""

import argparse
import json
import re
import warnings
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cl.encoders import _descriptions
from cl.networks.backbones import BackboneConfig
from cl.runtime.tensor_files import load_tensors

# Keys that hold a checkpoint's tensors; timm itself loads its moving average if there is one.
CONTAINERS = ("state_dict_ema", "state_dict", "model", "model_state_dict", "network")
PAIR = ("student", "teacher")  # networks that DINO and DINOv2 save side by side
OPTIMIZER = re.compile(r"optim|scheduler", re.IGNORECASE)  # keys whose tensors belong to no network
WRAPPERS = re.compile(r"(?<![^.])(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")  # torch's
ARCH = "arch"  # the key of an architecture in checkpoints: it may lack the size of images and the pooling
LIGHTNING = "pytorch-lightning_version"  # a key of its checkpoints
CHOICE = "choice"  # metadata key: which of several networks was read, in words
COUNTERS = re.compile(r"(.*\.)?total_(ops|params)")  # added by thop, which counts operations
OTHER_NETWORKS = (
    "for another network of timm, put timm's config.json beside the file, such as "
    '{"architecture": "convnext_tiny"}'
)
DESCRIBED = ("heads", "pool", "stem_padding", "transformers", "normalisation")  # keys only for config.json
# Plain values in checkpoints: a program's arguments and paths, and numbers of a schedule that NumPy computed.
PLAIN = [argparse.Namespace, np.dtype]
PLAIN += {type(np.dtype(code)) for code in "?" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"]}
SCALAR: Any = np.float64().__reduce__()[0]
PATHS: list[Any] = [
    (PurePath, f"{module}.{flavour}Path")
    for module in ("pathlib", "pathlib._local")  # of Python 3.13
    for flavour in ("Posix", "Windows", "PurePosix", "PureWindows")
]
SCALARS = [(SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]  # NumPy 1 and 2

# The first bytes of files that are mistaken for weights, in any case; what they are, and the remedy.
DISGUISES = (
    (rb"\s*version https://git-lfs", "a Git LFS pointer, not weights; fetch the file itself: `git lfs pull`"),
    (rb"(\xef\xbb\xbf)?\s*<(!doctype|html|\?xml|head)", "a web page, not weights; download the file itself"),
    (rb"\x89hdf|\x93numpy|gguf", "a Keras, NumPy or GGUF file, not weights; convert it to torch tensors"),
    (rb"\x1f\x8b|bzh|\xfd7z|7z\xbc|.{257}ustar", "an archive, not weights; unpack it, and give a file in it"),
    (rb"\x08[\x03-\x13]\x12", "an ONNX program, not weights; give the file that it was exported from"),
    (  # without the magic number of torch's files before 1.6
        rb"\x80[\x02-\x05](?!.{,52}l\xfc\x9cF\xf9 j\xa8P\x19)",
        "a pickle of another program, such as detectron2; save the weights with torch",
    ),
    (rb"\Z", "empty; download it again"),
    (rb"[\t\n\r -~]+\Z", "a text file ({!r}), not weights; download the file itself"),
)


class Converted(NamedTuple):
    """The tensors of another program's encoder, by the names of our network of a configuration.

    deviations: how the encoder differs from our network.
    doubt: a sentence on why the file does not determine the features; empty if it does.
    """

    config: BackboneConfig
    tensors: dict[str, Tensor]
    deviations: Sequence[str] = ()
    doubt: str = ""


def read(path: Path, prefix: str | None, *, described: bool) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors in a file, with those below `prefix`; its metadata, and timm's beside it if `described`."""
    with path.open("rb") as file:
        head = file.read(512)
    is_pickled = head.startswith((b"PK", b"\x80")) or path.suffix != ".safetensors"
    has_header = head[8:9] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size
    disguises = (what for start, what in DISGUISES if re.match(start, head, re.DOTALL | re.IGNORECASE))
    if not has_header and (what := next(disguises, "")):
        raise ValueError(f"{path} is {what.format(head[:40].decode(errors='replace'))}")
    if has_header or not is_pickled:  # by content: names mislead
        tensors, metadata = load_tensors(path)
        metadata.pop(CHOICE, None)
    else:
        tensors, metadata = _read_pickled(path, prefix or "")
    metadata = {key: value for key, value in metadata.items() if key not in DESCRIBED}
    if (description := _description(path) if described else None) is None:
        description = {"architecture": metadata.get(ARCH), **metadata}
    else:
        metadata.pop(ARCH, None)
    weights = {name: tensor for name, tensor in tensors.items() if not COUNTERS.fullmatch(name)}
    renamed = {unwrapped(name): tensor for name, tensor in weights.items()}
    named = renamed if len(renamed) == len(weights) else weights  # ambiguous if names would coincide
    return named, _descriptions.metadata(description) | metadata


def unwrapped(name: str) -> str:
    """The name of a tensor, or a prefix, without the names of torch's wrapper modules."""
    return WRAPPERS.sub("", name)


def _description(path: Path) -> dict[str, Any] | None:
    """The content of timm's config.json beside a file."""
    try:
        description = json.loads((path.parent / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):  # missing, or another program's
        return None
    return description if isinstance(description, dict) else None


def _read_pickled(path: Path, prefix: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # on formats that torch.load then refuses
            torch.serialization.safe_globals([*PLAIN, *SCALARS, *PATHS]),
            path.open("rb") as file,  # given a path, newer torch goes by the suffix
        ):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can make the reader raise anything
        raise ValueError(_unreadable(path, str(error))) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected named tensors")
    tensors = _named(content, set())
    key = prefix.partition(".")[0]
    if isinstance(content.get(key), dict) and not any(name.startswith(prefix) for name in tensors):
        # beside the network, such as its moving average
        tensors = {f"{key}.{name}": tensor for name, tensor in _named(content[key], set()).items()}
    if not tensors:
        keys = ", ".join(map(str, list(content)[:5])) or "nothing"
        raise ValueError(f"{path} holds no tensors of a network, found {keys}; give a file with weights")
    metadata = {key: content[key] for key in (ARCH, LIGHTNING) if isinstance(content.get(key), str)}
    return tensors, metadata | _choice(content, len(tensors))


def _choice(content: dict[Any, Any], tensors: int) -> dict[str, str]:
    """Which container `_named` chose, and which others hold as large a network; empty if none does."""
    parts = {str(key): value for key, value in content.items() if isinstance(value, dict)}
    large = [key for key, value in parts.items() if 2 * len(_named(value, set())) > tensors]
    networks = [key for key in large if not OPTIMIZER.search(key)]
    chosen = next((key for key in CONTAINERS if key in networks), "")
    others = [repr(key) for key in networks if parts[key] is not parts.get(chosen)]
    return {CHOICE: f"the network in {chosen!r}, not {' or '.join(others)}"} if chosen and others else {}


def _named(content: dict[Any, Any], seen: set[int]) -> dict[str, Tensor]:
    """The tensors in a checkpoint at any depth, by their path of keys; omits the keys of containers.

    No dictionary is read twice: `seen` has the ids of those that were.
    """
    if id(content) in seen:
        return {}
    seen.add(id(content))
    if not any(isinstance(content.get(part), dict) for part in PAIR):
        for container in CONTAINERS:
            inner = content.get(container)
            if isinstance(inner, dict) and (tensors := _named(inner, seen)):
                return tensors
    tensors = {}
    for key, value in content.items():
        if isinstance(value, dict) and not OPTIMIZER.search(str(key)):
            tensors |= {f"{key}.{name}": tensor for name, tensor in _named(value, seen).items()}
        elif isinstance(value, Tensor):
            tensors[str(key)] = value
    return tensors


def _unreadable(path: Path, error: str) -> str:
    """Why torch.load cannot read a file, and what to do."""
    names: list[str] = []
    with suppress(Exception):  # a damaged archive can make the reader raise anything
        names = zipfile.ZipFile(path).namelist()
    if match := re.search(r"GLOBAL ([\w.]+)", error):
        what = f"holds more than tensors and plain values ({match[1]})"
        program = (
            "f = lambda x: f(x.state_dict()) if hasattr(x, 'state_dict') else "
            "{k: f(v) for k, v in x.items()} if isinstance(x, dict) else "
            "x if isinstance(x, torch.Tensor) else None; "
            f"torch.save(f(torch.load('{path}', weights_only=False)), 'tensors.pth')"
        )
    elif any(name.endswith("/constants.pkl") for name in names):
        what = "is a TorchScript program"
        program = f"torch.save(torch.jit.load('{path}', 'cpu').state_dict(), 'tensors.pth')"
    elif names and not any(name.endswith("data.pkl") for name in names):
        return f"{path} is an archive (with {names[0]}), not weights; unpack it, and give a file in it"
    else:
        return f"{path} is not a torch checkpoint, or it is damaged; download it again"
    return (
        f"{path} {what}, so reading it could run arbitrary code; if you trust it, extract its tensors: "
        f'python -c "import torch; {program}"'
    )
