"""Small pictures of images with captions, in rows: the report shows them as they are listed here."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from cl.data.views import centre

SIDE = 96  # pixels
QUALITY = 90


class Captioned(NamedTuple):
    """An image (H, W, 3) with what is written below it, and whether that is right."""

    pixels: np.ndarray
    caption: str
    mark: Literal["", "right", "wrong"] = ""


def write_rows(folder: Path, rows: Iterable[tuple[str, list[Captioned]]]) -> None:
    """Write titled rows of pictures to `folder`, and `pictures.csv` that lists them."""
    folder.mkdir(exist_ok=True)
    with (folder / "pictures.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "title", "file", "caption", "mark"])
        for y, (title, pictures) in enumerate(rows):
            for x, picture in enumerate(pictures):
                name = f"{y}-{x}.jpg"
                Image.fromarray(centre(picture.pixels, SIDE, SIDE)).save(folder / name, quality=QUALITY)
                writer.writerow([y, title, name, picture.caption, picture.mark])
