"""Files of tensors: safetensors with a checksum, written atomically and read without pickle."""

import hashlib
import json
import os
import re
import shutil
import zlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from cl.runtime.files import PARTIAL

METADATA = "cl"  # a single entry: the order of several, and so the file's bytes, would vary
CHECKSUM = "crc32"
UNKNOWN = "unknown"  # licence


class DamagedError(ValueError):
    """A file of tensors differs from what was written."""


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file with a checksum; it appears under its name only once it is complete."""
    tensors, metadata = _unshared(tensors), metadata or {}
    entry = json.dumps({**metadata, CHECKSUM: _checksum(tensors, metadata)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(PARTIAL, f"{path.name}.", path.parent) as folder:
        partial = Path(folder) / "tensors"
        try:
            save_file(tensors, partial, {METADATA: entry})
        except SafetensorError as error:  # gives the number of a system error only as text
            number = re.search(r"os error (\d+)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        with partial.open("r+b") as file:
            os.fsync(file.fileno())
        usual = partial.with_name("usual")  # safetensors' own permissions let only the owner read
        usual.touch()
        shutil.copymode(usual, partial)
        os.replace(partial, path)


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous, each with its own memory: the format cannot store shared memory."""
    result: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        result[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return result


def _checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """CRC-32 of the metadata and of each (contiguous CPU) tensor's name, type, shape and bytes."""
    value = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.view(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file; ValueError if missing, DamagedError if damaged."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: run `dvc repro` first to create it")
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise DamagedError(f"{path} is incomplete or not a safetensors file: {error}") from error
    if METADATA in metadata:
        metadata = json_object(metadata[METADATA], f"{path} has metadata {METADATA}")
    stated = metadata.pop(CHECKSUM, None)
    if stated is not None and stated != (found := _checksum(tensors, metadata)):
        raise DamagedError(f"{path} is damaged: expected checksum {stated}, found {found}; create it again")
    return tensors, metadata


def json_object(text: str, what: str) -> dict[str, Any]:
    """The JSON object in an entry of a file's metadata, which `what` names; DamagedError if it is none."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DamagedError(f"{what}={str(text)[:40]!r}, expected a JSON object: another program's or damaged")
    return value


def licence(metadata: dict[str, str]) -> str:
    """The licence of a file of weights, else of its start and its teacher, else UNKNOWN."""
    origins = [json.loads(metadata.get("parent", "{}"))]
    with suppress(DamagedError):  # a name by another program
        origins.append(json_object(metadata.get("teacher", "{}"), "teacher"))
    licences = dict.fromkeys(str(origin["licence"]) for origin in origins if "licence" in origin)
    return metadata.get("licence") or metadata.get("license") or " and ".join(licences) or UNKNOWN


def check_values(tensors: dict[str, Tensor], file: str | Path) -> None:
    """Raises ValueError if a tensor has NaN or infinity, or is a negative variance; the message names it."""
    for name, tensor in tensors.items():
        is_variance = name.endswith("running_var")
        wrong = ~tensor.isfinite() | (tensor < 0) if is_variance else ~tensor.isfinite()
        if wrong.any():
            expected = "finite variances of at least 0" if is_variance else "finite numbers"
            raise ValueError(
                f"{file} has {tensor[wrong][0].item()} in {name}, expected {expected}: its training "
                "diverged, or it is damaged; choose an earlier checkpoint, or download it again"
            )


def below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, named without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def load_state(module: nn.Module, tensors: dict[str, Tensor], path: Path, remedy: str) -> None:
    """Load tensors read from `path` into a module; ValueError, with the remedy, if they do not fit."""
    found, expected = (
        {name: x.shape for name, x in state.items()} for state in (tensors, module.state_dict())
    )
    if differing := [name for name in sorted(found | expected) if found.get(name) != expected.get(name)]:
        raise ValueError(
            f"{path} does not match the model in {differing[0]}: other code or parameters wrote it; {remedy}"
        )
    module.load_state_dict(tensors)


def fingerprint(module: nn.Module) -> str:
    """A hash of all parameters and buffers: equal only if they are equal bit for bit."""
    sha = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        values = tensor.detach().cpu().contiguous().flatten()
        sha.update(name.encode() + values.view(torch.uint8).numpy().tobytes())  # NumPy has no bfloat16
    return sha.hexdigest()
