"""Sizes that make analyses fast."""

import functools
import tempfile
from pathlib import Path

from cl import config
from tests.support.project import compose

SIZES = ("dataset.train_patches=6", "dataset.val_patches=3")
SMALL: dict[str, dict] = {
    "npc": {"batch_sizes": [16, 32], "anchors": 64},
    "gradient_norm": {"negatives": [2, 8, 16], "images": 30, "queries": 25, "batch_size": 20},
    "views": {"images": 30, "batch_size": 20},
    "alignment_uniformity": {"batch_size": 32, "batches": 2},
    "embedding": {"images": 60, "perplexity": 5},
}


@functools.cache
def tiny_params(method: str) -> config.Params:
    """The parameters of a method at a tiny size."""
    with tempfile.TemporaryDirectory() as folder:
        return config.check(compose(Path(folder), f"method={method}", *SIZES, "optim.batch_size=64"))
