"""Short trainings of an evaluation, and what they leave on disk."""

from pathlib import Path
from typing import Any

import torch

from cl.evaluations import EvaluationContext
from cl.runtime.tensor_files import load_tensors
from tests.support.files import read_csv


def short(config: Any, **changes: object) -> Any:
    """The settings with three epochs of batches of 20, and other changes to the optimizer."""
    optim = config.optim.model_copy(update={"epochs": 3, "batch_size": 20, **changes})
    return config.model_copy(update={"optim": optim})


def trained(context: EvaluationContext, number: int = 0) -> dict[str, torch.Tensor]:
    """The final weights of the training with this number, in the order in which they started."""
    (path,) = context.out.glob(f"checkpoints/{number}-*/*.safetensors")
    return model_tensors(path)


def model_tensors(path: Path) -> dict[str, torch.Tensor]:
    tensors, _ = load_tensors(path)
    return {name: value for name, value in tensors.items() if name.startswith("model.")}


def read_heads(context: EvaluationContext) -> list[dict[str, float]]:
    """The rows of `heads.csv`."""
    rows = read_csv(context.out / "heads.csv")
    return [{key: float(value) for key, value in row.items()} for row in rows]
