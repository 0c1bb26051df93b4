"""Checkpoints of a training run: tensors without pickle, written atomically, the newest few kept."""

import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

KEEP = 2
PARTIAL = ".partial"  # how the name of a folder ends in which a file is being written
METADATA, CHECKSUM = (
    "cl",
    "crc32",
)  # one entry, as the format has no order of entries: equal content, equal bytes


class DamagedError(ValueError):
    """A file of tensors that is not as it was written."""


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """A safetensors file with a checksum, that appears under its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(
        PARTIAL, f"{path.name}.", path.parent
    ) as folder:  # the library writes under a name of its own
        partial = Path(folder) / "tensors"
        _save_file(tensors, partial, metadata or {})
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        usual = Path(folder) / "usual"
        usual.touch()
        shutil.copymode(usual, partial)  # the library lets nobody else read
        os.replace(partial, path)


def _save_file(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    tensors = _unshared(tensors)
    try:
        save_file(tensors, path, {METADATA: json.dumps({**metadata, CHECKSUM: _checksum(tensors, metadata)})})
    except SafetensorError as error:  # the library hides the number of the system's error in its text
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the host, contiguous, and a module that stands in two places twice: the format knows no shared memory."""
    result: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        result[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return result


def _checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """CRC-32 of the metadata and of each tensor's name, type, shape and bytes, in place: they are contiguous, on the host."""
    value = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.view(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file.

    Raises:
        ValueError: the file is missing.
        DamagedError: it is no safetensors file, an incomplete one, or has another checksum than it states, if it states one.
    """
    if not path.is_file():
        raise ValueError(f"no {path}: run `dvc repro` first, which makes it")
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        metadata = json.loads(metadata.get(METADATA, "null")) or metadata
    except (SafetensorError, json.JSONDecodeError) as error:
        raise DamagedError(
            f"{path} cannot be read ({error}); it is no safetensors file, or an incomplete one"
        ) from error
    stated = metadata.pop(CHECKSUM, None)
    if stated is not None and stated != (found := _checksum(tensors, metadata)):
        raise DamagedError(
            f"{path} is damaged: its checksum is {found}, not {stated} as when it was written; make it anew"
        )
    return tensors, metadata


class Checkpoints:
    """The checkpoints of one run in one folder, by step; one is due every so many seconds."""

    def __init__(self, folder: Path, seconds: float = 60.0) -> None:
        self.folder, self.seconds = folder, seconds
        self._saved = time.monotonic()

    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self._saved >= self.seconds

    def save(self, step: int, model: nn.Module, optimizer: Optimizer, history: dict[str, Any]) -> None:
        """Save all that the next step depends on, then drop all but the newest few."""
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        tensors |= {f"optimizer.{name}": tensor for name, tensor in _optimizer_state(optimizer).items()}
        save_tensors(tensors, self.folder / f"step-{step:09d}.safetensors", {"history": json.dumps(history)})
        for old in self._files()[:-KEEP]:
            old.unlink(missing_ok=True)
        self._saved = time.monotonic()

    def restore(
        self, model: nn.Module, optimizer: Optimizer, say: Callable[[str], None] = lambda text: None
    ) -> tuple[int, dict[str, Any]]:
        """Load the newest checkpoint that is whole; its step and history, or 0 and {}. `say` is told of those removed."""
        for partial in self.folder.glob(f"*{PARTIAL}"):
            shutil.rmtree(partial, ignore_errors=True)  # a process was killed while it saved
        for path in reversed(self._files()):
            try:
                tensors, metadata = load_tensors(path)
            except DamagedError as error:
                path.unlink(missing_ok=True)
                say(
                    f"{error}. It is removed: the run goes on from the checkpoint before it, or from the start"
                )
                continue
            model.load_state_dict(_below(tensors, "model."))
            _load_optimizer_state(optimizer, _below(tensors, "optimizer."))
            return int(path.stem.removeprefix("step-")), json.loads(metadata["history"])
        return 0, {}

    def discard(self) -> None:
        """Remove them all: the run is finished and its results are safe."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.safetensors"))


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _optimizer_state(optimizer: Optimizer) -> dict[str, Tensor]:
    """Each tensor that the optimizer holds for its parameter number 3, say, as "3.<name>"."""
    return {
        f"{number}.{name}": value
        for number, parameter in enumerate(_parameters(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def _load_optimizer_state(optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = _parameters(optimizer)
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        if tensor.shape == parameter.shape:  # same memory layout as its parameter
            tensor = torch.empty_like(parameter).copy_(tensor)
        optimizer.state[parameter][name] = tensor.to(
            parameter.device
        )  # where fused optimizers look for their step, too
