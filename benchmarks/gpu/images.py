"""Shards of images to read: pieces of scikit-learn's two photographs."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Picture
from sklearn.datasets import load_sample_images

from cl.config import Params
from cl.data.reader import Reader
from cl.images.image import Image, Splits, raw_images
from cl.runtime.cores import cores
from cl.shards import writing
from cl.shards.survey import Team
from cl.sources import Storage


def photographs(folder: Path, count: int) -> list[Image]:
    """JPEGs of 500 x 375."""
    pictures, rng = load_sample_images().images, np.random.default_rng(0)
    files = []
    for number in range(count):
        top, left = rng.integers(0, 427 - 375 + 1), rng.integers(0, 640 - 500 + 1)
        path = folder / f"{number:05d}.jpg"
        crop = np.asarray(pictures[number % 2])[top : top + 375, left : left + 500]
        Picture.fromarray(crop).save(path, quality=92)
        files.append(Image(f"{number:05d}", path, 0))
    return files


def squares(folder: Path, count: int, side: int) -> list[Image]:
    """Images of one size, as those of CIFAR (32 px) and STL-10 (96 px)."""
    pictures, rng = load_sample_images().images, np.random.default_rng(0)
    places = rng.integers(0, 427 - side, (count, 2))
    pixels = [pictures[n % 2][top : top + side, left : left + side] for n, (top, left) in enumerate(places)]
    return raw_images("squares", folder, np.stack(pixels), [0] * count)


def stored(files: list[Image], params: Params, folder: Path, **changes: Any) -> Reader:
    """Shards of these images, stored as the data set's are but for these changes."""
    storage = Storage(**{**params.dataset.model_dump(include=set(Storage.model_fields)), **changes})
    writing.write(Splits(["any"], files, files[:8]), "benchmark", storage, folder, Team(cores()))
    return Reader(folder, "train")
