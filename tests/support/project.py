"""The project that is tested, and its parameters at a tiny size."""

import tempfile
from functools import cache
from pathlib import Path

from cl import config

ROOT = Path(__file__).parents[2]
TINY = [
    "dataset.train_patches=6",
    "dataset.val_patches=3",
    "dataset.shard_images=50",
    "optim.batch_size=32",
    "optim.epochs=2",
]


def compose(tmp_path: Path, *overrides: str) -> dict:
    """The parameters that `-S` with these overrides gives; composing the same again takes no time."""
    (tmp_path / "params.yaml").write_bytes(_composed(overrides))
    return config.read(tmp_path / "params.yaml")


@cache
def _composed(overrides: tuple[str, ...]) -> bytes:
    from pipeline.compose import compose as write

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "params.yaml"
        write(path, list(overrides))
        return path.read_bytes()
