"""The project that is tested, and its parameters at a tiny size."""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.support import composition

ROOT = Path(__file__).parents[2]
TINY = [
    "dataset.train_patches=6",
    "dataset.val_patches=3",
    "dataset.shard_images=50",
    "optim.batch_size=32",
    "optim.epochs=2",
]


def compose(folder: Path, *overrides: str) -> dict[str, Any]:
    """The parameters that `-S` with these overrides gives, also as params.yaml in the folder."""
    values = _composed(overrides)
    (folder / "params.yaml").write_text(json.dumps(values))  # JSON is YAML too, and takes no time to write
    return copy.deepcopy(values)


@cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    return composition.compose(list(overrides))
