"""The embedded data set: patches of twenty photographs that come with three Python packages.

The class is the photograph. Training and validation patches come from disjoint bands of it, so no pixel of a
validation patch is ever seen in training.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image as Picture
from pydantic import Field

from cl.images import photographs
from cl.images.image import Splits
from cl.runtime.base_config import Sizes
from cl.sources import Source
from cl.sources._shared.class_folders import class_folders

QUALITY = 95


class Config(Source):
    """The number and size of the square patches cut from each photograph."""

    kind: Literal["photos"]
    train_patches: int = Field(gt=0, description="per class")
    val_patches: int = Field(gt=0, description="per class")
    side: Sizes = Field(description="smallest and largest side of a patch in the photograph, pixels")


def splits(config: Config, raw: Path) -> Splits:
    """Write the patches as class folders of JPEGs below `raw/photos`, once per setting, and list them."""
    setting = config.model_dump_json(include={"train_patches", "val_patches", "side"})
    recipe = setting.encode() + Path(__file__).read_bytes() + Path(photographs.__file__).read_bytes()
    root = raw / "photos" / hashlib.sha256(recipe).hexdigest()[:12]
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=root.parent, prefix="partial-"))
        try:
            _write_patches(config, partial)
            partial.chmod(0o755)
            os.replace(partial, root)
        except OSError:
            if not root.exists():  # otherwise another process was first, with equal bytes
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return class_folders(root)


def _write_patches(config: Config, root: Path) -> None:
    """Write `root/{train,val}/<photograph>/<number>.jpg`; equal configs give equal bytes."""
    counts = {"train": config.train_patches, "val": config.val_patches}
    for label, (name, path) in enumerate(photographs.files().items()):
        with Picture.open(path) as file:
            photograph = file.convert("RGB")
        for split, band in photographs.bands(photograph).items():
            rng = np.random.Generator(np.random.Philox(key=[label, split == "val"]))
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(counts[split]):
                size = int(rng.integers(config.side[0], min(config.side[1], *band.size) + 1))
                left, top = (int(rng.integers(0, length - size + 1)) for length in band.size)
                patch = band.crop((left, top, left + size, top + size))
                patch.save(folder / f"{number:04d}.jpg", quality=QUALITY)
