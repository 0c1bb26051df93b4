"""STL-10: the binary files as distributed, in `<raw>/stl10_binary/`.

Training images are the 5,000 labelled and the 100,000 unlabelled ones; evaluations learn from the labelled ones alone.
"""

from pathlib import Path
from typing import Literal

import numpy as np
from torchvision.datasets import STL10

from cl.sources import UNLABELLED, Image, Source, Splits, raw_images

SIDE = 96


class Config(Source):
    """Nothing to choose."""

    kind: Literal["stl10"]


def splits(config: Config, raw: Path) -> Splits:
    """The labelled and the unlabelled images for training, the test images for validation, 96x96 pixels each.

    Raises:
        ValueError: a file is missing, is no row of whole images, or the labels do not fit the images and classes.
    """
    folder = raw / STL10.base_folder
    try:
        classes = (folder / STL10.class_names_file).read_text().split()
        train, test = (_labelled(folder, name, len(classes)) for name in ("train", "test"))
        unlabelled = _pixels(folder / "unlabeled_X.bin")
        train += raw_images("unlabeled", folder / "unlabeled_X.bin", unlabelled, [UNLABELLED] * len(unlabelled))
        return Splits(classes, train, test)
    except (ValueError, FileNotFoundError) as error:
        found = f"no file {error.filename}" if isinstance(error, FileNotFoundError) else str(error)
        raise ValueError(
            f"{found}; unpack {STL10.filename} (md5 {STL10.tgz_md5}) in {raw}, "
            "or set CL_RAW to the folder that holds the raw data sets"
        ) from error


def _labelled(folder: Path, name: str, classes: int) -> list[Image]:
    pixels, path = _pixels(folder / f"{name}_X.bin"), folder / f"{name}_y.bin"
    labels = np.fromfile(path, np.uint8)  # 1 to `classes`
    if len(labels) != len(pixels):
        raise ValueError(f"{path} has {len(labels)} labels for {len(pixels)} images")
    if wrong := sorted({*labels.tolist()} - {*range(1, classes + 1)}):
        raise ValueError(f"{path} has the label {wrong[0]}, expected 1 to {classes}")
    return raw_images(name, folder / f"{name}_X.bin", pixels, labels.astype(int) - 1)


def _pixels(path: Path) -> np.ndarray:
    """(n, 96, 96, 3) uint8, read from the disk where it is looked at; the file holds (n, 3, x, y)."""
    size, image = path.stat().st_size, 3 * SIDE * SIDE
    if size == 0 or size % image:
        raise ValueError(f"{path} has {size} bytes, which are not images of {image} bytes each")
    return np.asarray(np.memmap(path, np.uint8, "r")).reshape(-1, 3, SIDE, SIDE).transpose(0, 3, 2, 1)
