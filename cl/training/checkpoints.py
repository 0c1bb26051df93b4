"""Checkpoints of a training run: tensors without pickle, written atomically, the newest few kept."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cl.runtime.tensor_files import PARTIAL, DamagedError, load_tensors, save_tensors

KEEP = 2


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
