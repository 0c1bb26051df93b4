"""STL-10: the binary files as distributed, in `<raw>/stl10_binary/`, or downloaded.

Pretraining uses the 5,000 labelled and the 100,000 unlabelled images; evaluations use the labelled ones only.
"""

from pathlib import Path
from typing import Literal

import numpy as np

from cl.images.image import UNLABELLED, Image, Splits, raw_images
from cl.sources import Source
from cl.sources._shared.archives import ensure_unpacked

SIDE = 96


class Config(Source):
    """Has no further settings."""

    kind: Literal["stl10"]


def splits(config: Config, raw: Path) -> Splits:
    """List the 96x96 images: labelled and unlabelled ones for training, test images for validation."""
    from torchvision.datasets import STL10  # late: torchvision takes seconds to import

    folder = ensure_unpacked(STL10, raw)
    train, test = (_labelled(folder, name) for name in ("train", "test"))
    classes = (folder / STL10.class_names_file).read_text().split()
    path = folder / "unlabeled_X.bin"
    unlabelled = _pixels(path)
    train += raw_images("unlabeled", path, unlabelled, [UNLABELLED] * len(unlabelled))
    return Splits(classes, train, test)


def _labelled(folder: Path, name: str) -> list[Image]:
    labels = np.fromfile(folder / f"{name}_y.bin", np.uint8)  # from 1
    path = folder / f"{name}_X.bin"
    return raw_images(name, path, _pixels(path), labels.astype(int) - 1)


def _pixels(path: Path) -> np.ndarray:
    """(n, 96, 96, 3) uint8, read from disk when accessed; the file holds (n, 3, x, y)."""
    return np.asarray(np.memmap(path, np.uint8, "r")).reshape(-1, 3, SIDE, SIDE).transpose(0, 3, 2, 1)
