"""Made images of five bands of 16 bits, in class folders, and shards of them."""

from pathlib import Path

import numpy as np
import tifffile

from cl.data.views import BandChanges
from cl.sources._shared.class_folders import class_folders
from tests.support.tiny import write_shards

NAMES = ["1", "2", "3", "4", "5"]
CHANGES = BandChanges(
    p=0.8,
    gain=0.4,
    offset=0.4,
    band_gain=0.2,
    band_offset=0.1,
    saturation=0.4,
    hue=0.2,
    noise=0.2,
    grayscale=0.2,
    dropout=0.2,
    turn=0.75,
)


def write_images(root: Path, train: int, val: int) -> None:
    """Images of 40 x 48 pixels and three classes, which differ in their bands; 0 is a pixel without data."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for number in range(count):
            colour = np.random.default_rng(number % 3).uniform(500, 3000, (5, 1, 1))
            pixels = (colour + rng.normal(0, 100, (5, 40, 48))).astype(np.uint16)
            pixels[:, :3, :3] = 0
            path = root / split / f"kind{number % 3}" / f"{number}.tif"
            path.parent.mkdir(parents=True, exist_ok=True)
            tags = [(42113, "s", 0, "0", False)]  # GDAL's, for pixels without data
            tifffile.imwrite(path, pixels, photometric="minisblack", extratags=tags, metadata=None)


def write_band_shards(folder: Path, train: int, val: int) -> Path:
    """Shards of such images, whose files are in `folder`/raw."""
    write_images(folder / "raw", train, val)
    settings = {"channels": "all", "encode": "raw", "upright": True}
    write_shards(class_folders(folder / "raw"), folder / "shards", 50, **settings)
    return folder / "shards"
