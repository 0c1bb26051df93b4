"""STL-10: the binary files as distributed, in `<raw>/stl10_binary/` (`cl.sources._shared.archives` fetches them).

Training images are the 5,000 labelled and the 100,000 unlabelled ones; evaluations learn from the labelled ones alone.
"""

from pathlib import Path
from typing import Literal

import numpy as np
from torchvision.datasets import STL10

from cl.sources import UNLABELLED, Image, Source, Splits, raw_images
from cl.sources._shared.archives import unpacked

SIDE = 96


class Config(Source):
    """Nothing to choose."""

    kind: Literal["stl10"]


def splits(config: Config, raw: Path) -> Splits:
    """The labelled and the unlabelled images for training, the test images for validation, 96x96 pixels each.

    Raises:
        ValueError: the download fails, a file is another than the official one, or the class names do not fit.
    """
    folder = unpacked(STL10, raw)
    names = folder / STL10.class_names_file  # torchvision knows no md5 of it
    classes = names.read_text(errors="replace").split() if names.is_file() else []
    train, test = (_labelled(folder, name) for name in ("train", "test"))
    if len(classes) != (labels := 1 + max(image.label for image in train + test)):
        raise ValueError(
            f"{names} has {len(classes)} names for {labels} classes: take it from {STL10.filename} again"
        )
    unlabelled = _pixels(folder / "unlabeled_X.bin")
    train += raw_images("unlabeled", folder / "unlabeled_X.bin", unlabelled, [UNLABELLED] * len(unlabelled))
    return Splits(classes, train, test)


def _labelled(folder: Path, name: str) -> list[Image]:
    labels = np.fromfile(folder / f"{name}_y.bin", np.uint8)  # from 1 on
    path = folder / f"{name}_X.bin"
    return raw_images(name, path, _pixels(path), labels.astype(int) - 1)


def _pixels(path: Path) -> np.ndarray:
    """(n, 96, 96, 3) uint8, read from the disk where it is looked at; the file holds (n, 3, x, y)."""
    return np.asarray(np.memmap(path, np.uint8, "r")).reshape(-1, 3, SIDE, SIDE).transpose(0, 3, 2, 1)
