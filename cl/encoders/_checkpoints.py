"""Files of weights by any program: named tensors and metadata, read without running code."""

import argparse
import json
import re
import tarfile
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cl.encoders import _descriptions, published
from cl.networks.backbones import Backbone, BackboneConfig
from cl.runtime.tensor_files import check_values, load_tensors

CONTAINERS = ("state_dict", "model", "model_state_dict", "network")  # keys that hold a checkpoint's tensors
PAIR = ("student", "teacher")  # networks that DINO and DINOv2 save side by side
OPTIMIZER = re.compile(r"optim|scheduler", re.IGNORECASE)  # keys whose tensors belong to no network
WRAPPERS = re.compile(r"(?<![^.])(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")  # torch's
ARCH = "arch"  # the key of an architecture in checkpoints: it may lack the size of images and the pooling
LIGHTNING = "pytorch-lightning_version"  # a key of its checkpoints
COUNTERS = re.compile(r"(.*\.)?total_(ops|params)")  # added by thop, which counts operations
DESCRIBED = ("heads", "pool", "stem_padding", "transformers", "normalisation")  # keys only for config.json
# Plain values in checkpoints: a program's arguments, and numbers of a schedule that NumPy computed.
PLAIN = [argparse.Namespace, np.dtype]
PLAIN += {type(np.dtype(code)) for code in "?" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"]}
SCALAR: Any = np.float64().__reduce__()[0]
SCALARS = [(SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]  # NumPy 1 and 2

LEGACY = b"l\xfc\x9cF\xf9 j\xa8P\x19"  # magic number of torch's files before 1.6
ONNX = tuple(bytes([8, version, 18]) for version in range(3, 20))  # the first two fields of its protocol
COMPRESSED = (b"\x1f\x8b", b"bzh", b"\xfd7zxz", b"7z\xbc")  # gzip, bzip2, xz and 7z
# The first bytes of files that are mistaken for weights, what these files are, and the remedy.
DISGUISES = (
    ((b"version https://git-lfs",), "a Git LFS pointer", "fetch the file itself: `git lfs pull`"),
    ((b"<!doctype", b"<html", b"<?xml", b"<head"), "a web page", "download the file itself"),
    ((b"\x89hdf", b"\x93numpy", b"gguf"), "a Keras, NumPy or GGUF file", "convert it to torch tensors"),
    (COMPRESSED, "a compressed archive", "unpack it, and give a file in it"),
    (ONNX, "an ONNX program", "give the file that it was exported from"),
)


class Recognised(NamedTuple):
    """A network with its weights and its configuration.

    deviation: how it differs from our network of this configuration.
    doubt: a sentence on why the file does not determine its features; empty if it does.
    """

    network: Backbone
    config: BackboneConfig
    deviation: str = ""
    doubt: str = ""


def read(path: Path, prefix: str | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors in a file; its metadata, completed by timm's config.json beside it.

    Args:
        prefix: of the names of tensors that must not be left out.

    Raises:
        ValueError: the file is missing or damaged, or holds objects that only its own program can read.
    """
    if not path.is_file():
        raise ValueError(published.missing(path))
    with path.open("rb") as file:
        head = file.read(512)
    is_pickled = head.startswith((b"PK", b"\x80")) or path.suffix != ".safetensors"
    has_header = head[8:9] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size
    if not has_header and (disguise := _disguise(head)):
        raise ValueError(f"{path} {disguise}")
    if has_header or not is_pickled:  # by content: names mislead
        tensors, metadata = load_tensors(path)
    else:
        tensors, metadata = _read_pickled(path, prefix or "")
    metadata = {key: value for key, value in metadata.items() if key not in DESCRIBED}
    if (description := _description(path)) is None:
        description = {"architecture": metadata.get(ARCH), **metadata}
    else:
        metadata.pop(ARCH, None)
    return _cleaned(tensors), _descriptions.metadata(description) | metadata


def _disguise(head: bytes) -> str:
    """What a file is instead of weights, by its first bytes, and the remedy; empty if it may be weights."""
    text = head.lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    for starts, what, remedy in DISGUISES:
        if text.startswith(starts):
            return f"is {what}, not weights; {remedy}"
    if head.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")) and LEGACY not in head[:64]:
        return "is a pickle of another program, such as detectron2; save the weights with torch"
    if not head:
        return "is empty; download it again"
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head):
        return f"is a text file ({head[:40].decode()!r}), not weights; download the file itself"
    return ""


def unwrapped(name: str) -> str:
    """The name of a tensor, or a prefix, without the names of torch's wrapper modules."""
    return WRAPPERS.sub("", name)


def _cleaned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without counters of operations, and without wrappers in their names."""
    weights = {name: tensor for name, tensor in tensors.items() if not COUNTERS.fullmatch(name)}
    renamed = {unwrapped(name): tensor for name, tensor in weights.items()}
    return renamed if len(renamed) == len(weights) else weights  # ambiguous if names would coincide


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
            torch.serialization.safe_globals([*PLAIN, *SCALARS]),
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
        tensors = _named({key: content[key]}, set())  # beside the network, such as its moving average
    if not tensors:
        keys = ", ".join(map(str, list(content)[:5])) or "nothing"
        raise ValueError(f"{path} holds no tensors of a network, found {keys}; give a file with weights")
    return tensors, {key: content[key] for key in (ARCH, LIGHTNING) if isinstance(content.get(key), str)}


def _named(content: dict[Any, Any], seen: set[int]) -> dict[str, Tensor]:
    """The tensors in a checkpoint at any depth, by their path of keys; omits the keys of containers.

    Args:
        seen: ids of the dictionaries already visited; none is read twice.
    """
    if id(content) in seen:
        return {}
    seen.add(id(content))
    if not any(isinstance(content.get(part), dict) for part in PAIR):
        for container in CONTAINERS:
            inner = content.get(container)
            if isinstance(inner, dict) and (found := _named(inner, seen)):
                return found
    found = {}
    for key, value in content.items():
        if isinstance(value, dict) and not OPTIMIZER.search(str(key)):
            found |= {f"{key}.{name}": tensor for name, tensor in _named(value, seen).items()}
        elif isinstance(value, Tensor):
            found[str(key)] = value
    return found


def _unreadable(path: Path, error: str) -> str:
    """Why torch.load cannot read a file, and what to do."""
    if match := re.search(r"GLOBAL ([\w.]+)", error):
        program = (
            "f = lambda x: f(x.state_dict()) if hasattr(x, 'state_dict') else "
            "{k: f(v) for k, v in x.items()} if isinstance(x, dict) else "
            "x if isinstance(x, torch.Tensor) else None; "
            f"torch.save(f(torch.load('{path}', weights_only=False)), 'tensors.pth')"
        )
        return _unsafe(f"{path} holds more than tensors and plain values ({match[1]})", program)
    names = _names_in_archive(path)
    if any(name.endswith("/constants.pkl") for name in names):
        program = f"torch.save(torch.jit.load('{path}', 'cpu').state_dict(), 'tensors.pth')"
        return _unsafe(f"{path} is a TorchScript program", program)
    if names and not any(name.endswith("data.pkl") for name in names):
        return f"{path} is an archive (with {names[0]}), not weights; unpack it, and give a file in it"
    return f"{path} is not a torch checkpoint, or it is damaged; download it again"


def _unsafe(finding: str, program: str) -> str:
    return (
        f"{finding}, so reading it could run arbitrary code; if you trust it, extract its tensors: "
        f'python -c "import torch; {program}"'
    )


def _names_in_archive(path: Path) -> list[str]:
    """The names in a ZIP or tar archive; none for other files and damaged ones."""
    with suppress(Exception):  # a damaged archive can make the reader raise anything
        if zipfile.is_zipfile(path):
            return zipfile.ZipFile(path).namelist()
        if tarfile.is_tarfile(path):
            return tarfile.open(path).getnames()
    return []


def fill(network: Backbone, tensors: dict[str, Tensor], what: str, file: str) -> None:
    """Load all of an encoder's tensors into a network.

    Raises:
        ValueError: names or shapes differ, so the file does not hold `what`; or values are not finite, or
            impossible.
    """
    expected = network.state_dict()
    for name, tensor in tensors.items():
        if name in expected and expected[name].is_floating_point() and (kind := _unusable(tensor)):
            raise ValueError(
                f"{file} has {kind} numbers in {name}, expected floating-point numbers; save the weights "
                "before they are quantised or packed"
            )
    # Files from before torch 0.4.1 lack the counters of batches, which nothing here reads.
    counters = {name: torch.tensor(0) for name in expected if name.endswith("num_batches_tracked")}
    tensors = counters | tensors
    differences = [
        *(f"has {name}, which this network lacks" for name in tensors.keys() - expected.keys()),
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
    check_values(network.state_dict(), file)  # after the conversion, which may overflow


def _unusable(tensor: Tensor) -> str:
    """The kind of numbers in a tensor if they cannot be weights; otherwise empty."""
    if tensor.layout is not torch.strided:
        return "sparse"
    if tensor.is_meta:
        return "no"
    return "" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
