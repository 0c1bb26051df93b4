"""Checkpoints of a training run: tensors without pickle, written atomically, the newest few kept."""

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

KEEP = 2


class DamagedError(ValueError):
    """A file of tensors that is not whole."""


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """A safetensors file that appears under its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        _save_file(tensors, partial, metadata)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _save_file(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None) -> None:
    try:
        save_file(_unshared(tensors), path, metadata)
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


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file.

    Raises:
        ValueError: the file is missing.
        DamagedError: it is no safetensors file, or an incomplete one.
    """
    if not path.is_file():
        raise ValueError(f"no {path}: run `dvc repro` first, which makes it")
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise DamagedError(f"{path} cannot be read ({error}); it is no safetensors file, or an incomplete one") from error


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

    def restore(self, model: nn.Module, optimizer: Optimizer) -> tuple[int, dict[str, Any]]:
        """Load the newest checkpoint that can be read; its step and history, or 0 and {}."""
        for path in reversed(self._files()):
            try:
                tensors, metadata = load_tensors(path)
            except DamagedError:
                path.unlink()  # torn by a crash of the machine; the one before is whole
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
        if tensor.shape == parameter.shape:  # same device and memory layout as its parameter
            tensor = torch.empty_like(parameter).copy_(tensor)
        optimizer.state[parameter][name] = tensor
