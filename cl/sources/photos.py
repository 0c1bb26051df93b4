"""The embedded data set: patches of twenty photographs that are installed with three Python packages.

The class is the photograph. Train and validation patches come from two disjoint bands of it, so that no pixel of a
validation patch was seen in training.
"""

import hashlib
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image as Picture
from pydantic import Field

from cl.runtime.base_config import Sizes
from cl.sources import Source, Splits
from cl.sources.folder import class_folders

SKIMAGE = [
    "astronaut.png",
    "brick.png",
    "camera.png",
    "cell.png",
    "chelsea.png",
    "coffee.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "moon.png",
    "motorcycle_left.png",
    "page.png",
    "retina.jpg",
    "rocket.jpg",
    "text.png",
]
SKLEARN = ["china.jpg", "flower.jpg"]
MATPLOTLIB = ["grace_hopper.jpg"]
NAMES = sorted(file.split(".")[0] for file in SKIMAGE + SKLEARN + MATPLOTLIB)
TRAIN_BAND = 0.7
QUALITY = 95


class Config(Source):
    """How many square patches of which size are cut from each photograph."""

    kind: Literal["photos"]
    train_patches: int = Field(gt=0, description="a class")
    val_patches: int = Field(gt=0, description="a class")
    side: Sizes = Field(description="smallest and largest side of a patch in the photograph, pixels")


def photographs() -> dict[str, Path]:
    """The twenty photographs by name, in the order of NAMES."""
    import matplotlib
    import skimage
    import sklearn

    files = [Path(skimage.__file__).parent / "data" / name for name in SKIMAGE]
    files += [Path(sklearn.__file__).parent / "datasets" / "images" / name for name in SKLEARN]
    files += [Path(matplotlib.get_data_path()) / "sample_data" / name for name in MATPLOTLIB]
    return {path.stem: path for path in sorted(files, key=lambda p: p.stem)}


def bands(photograph: Picture.Image) -> dict[str, Picture.Image]:
    """Two disjoint parts of a photograph along its longer side: 70 % for training, the rest for validation."""
    width, height = photograph.size
    cut = int(TRAIN_BAND * max(width, height))
    if width >= height:
        return {"train": photograph.crop((0, 0, cut, height)), "val": photograph.crop((cut, 0, width, height))}
    return {"train": photograph.crop((0, 0, width, cut)), "val": photograph.crop((0, cut, width, height))}


def splits(config: Config, raw: Path) -> Splits:
    """Write the patches as class folders of JPEGs below `raw/photos`, once for each setting, and list them."""
    setting = config.model_dump_json(include={"train_patches", "val_patches", "side"})
    recipe = setting.encode() + Path(__file__).read_bytes()  # another way of cutting has another folder too
    root = raw / "photos" / hashlib.sha256(recipe).hexdigest()[:12]
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=root.parent, prefix="partial-"))
        try:
            write(config, partial)
            partial.chmod(0o755)
            os.replace(partial, root)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return class_folders(root)


def write(config: Config, root: Path) -> None:
    """Cut the patches into `root/{train,val}/<photograph>/<number>.jpg`; the same bytes for the same config."""
    counts = {"train": config.train_patches, "val": config.val_patches}
    for label, (name, path) in enumerate(photographs().items()):
        with Picture.open(path) as file:
            photograph = file.convert("RGB")
        for split, band in bands(photograph).items():
            rng = np.random.Generator(np.random.Philox(key=[label, split == "val"]))
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(counts[split]):
                (folder / f"{number:04d}.jpg").write_bytes(_patch(band, config.side, rng))


def _patch(band: Picture.Image, side: tuple[int, int], rng: np.random.Generator) -> bytes:
    size = int(rng.integers(side[0], min(side[1], *band.size) + 1))
    left, top = (int(rng.integers(0, length - size + 1)) for length in band.size)
    file = io.BytesIO()
    band.crop((left, top, left + size, top + size)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
