"""Checkpoints of a training run, written atomically and read without pickle; only the newest are kept."""

import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cl.runtime.files import PARTIAL
from cl.runtime.tables import write_csv
from cl.runtime.tensor_files import DamagedError, below, load_state, load_tensors, save_tensors

KEEP = 2
SHARE = 0.02  # of the time, for saving
RAREST = 30  # times `seconds`


class Checkpoints:
    """The checkpoints of one run in one folder, named by step.

    One is due every `seconds`, or less often, up to `RAREST` times, if `save` would take more than `SHARE`.
    A `with` block ends once the last one is written; an exception does not wait for it.
    """

    def __init__(self, folder: Path, seconds: float = 60.0) -> None:
        self.folder, self.seconds = folder, seconds
        self._saved, self._took = time.monotonic(), 0.0
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.finish()

    def due(self) -> bool:
        """Whether it is time to save. Raises OSError if the last one could not be written."""
        if self._writing and not self._writing.done():
            return False
        self.finish()
        longest = min(self._took / SHARE, RAREST * self.seconds)
        return time.monotonic() - self._saved >= max(self.seconds, longest)

    def save(self, step: int, model: nn.Module, optimizer: Optimizer, history: dict[str, Any]) -> None:
        """Copy everything that the next step depends on; a thread writes the copy."""
        began = time.monotonic()
        self.finish()
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        tensors |= {f"optimizer.{name}": tensor for name, tensor in optimizer_state(model, optimizer).items()}
        copies = {name: copied(tensor) for name, tensor in tensors.items()}
        path, metadata = self.folder / f"step-{step:09d}.safetensors", {"history": json.dumps(history)}
        pool = ThreadPoolExecutor(1)
        self._writing = pool.submit(self._write, copies, path, metadata)
        pool.shutdown(wait=False)  # the thread ends with its work
        self._saved = time.monotonic()
        self._took = self._saved - began

    def finish(self) -> None:
        """Wait until the last checkpoint is written; raises OSError if it could not be."""
        writing, self._writing = self._writing, None
        if writing:
            writing.result()

    def _write(self, tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
        """Write a checkpoint, then remove all but the newest KEEP."""
        save_tensors(tensors, path, metadata)
        for old in self._files()[:-KEEP]:
            old.unlink(missing_ok=True)

    def restore(
        self, model: nn.Module, optimizer: Optimizer, say: Callable[[str], None] = lambda text: None
    ) -> tuple[int, dict[str, Any]]:
        """Load the newest undamaged checkpoint; returns its step and history, or 0 and {}."""
        for partial in self.folder.glob(f"*{PARTIAL}"):
            shutil.rmtree(partial, ignore_errors=True)  # a process was killed while saving
        for path in reversed(self._files()):
            try:
                tensors, metadata = load_tensors(path)
            except DamagedError as error:
                path.unlink(missing_ok=True)
                say(f"{error}. It was removed; the run continues from the previous checkpoint or starts over")
                continue
            load_state(model, below(tensors, "model."), path, f"remove {self.folder} to start again")
            load_optimizer_state(model, optimizer, below(tensors, "optimizer."))
            return int(path.stem.removeprefix("step-")), json.loads(metadata["history"])
        return 0, {}

    @property
    def epochs(self) -> Path:
        """The table of the epochs so far, for following the run."""
        return self.folder / "epochs.csv"

    def publish(self, rows: list[dict[str, Any]]) -> None:
        """Replace the table of epochs, which may contain epochs later than the restored checkpoint."""
        if rows:
            write_epochs(rows, self.epochs)
        else:
            self.epochs.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.safetensors"))


def copied(tensor: Tensor) -> Tensor:
    """A contiguous copy on the CPU, which later steps do not change."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def write_epochs(rows: list[dict[str, Any]], path: Path) -> None:
    """Write a table of epochs, to six decimals; readers never see an incomplete table."""
    columns = dict.fromkeys(column for row in rows for column in row)
    cells = ([round(row[name], 6) if name in row else "" for name in columns] for row in rows)
    write_csv(path, columns, cells)


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors, named `<parameter of the model>.<name>`."""
    return {
        f"{parameter_name}.{name}": value
        for parameter_name, parameter in model.named_parameters()
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def load_optimizer_state(model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore what `optimizer_state` returned for an equal model and optimizer."""
    parameters = dict(model.named_parameters())
    for key, tensor in tensors.items():
        parameter_name, name = key.rsplit(".", 1)
        parameter = parameters[parameter_name]
        if tensor.shape == parameter.shape:  # give it its parameter's memory layout
            tensor = torch.empty_like(parameter).copy_(tensor)
        # Fused optimizers keep their step on the device too.
        optimizer.state[parameter][name] = tensor.to(parameter.device)
