"""Small captioned pictures in rows, as the report shows them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from cl.data.views import centre
from cl.runtime.tables import write_csv

SIDE = 96  # pixels
QUALITY = 90


class Captioned(NamedTuple):
    """An image (H, W, 3) with its caption; `mark`: whether the caption is the true class."""

    pixels: np.ndarray
    caption: str
    mark: Literal["", "right", "wrong"] = ""


def write_rows(folder: Path, rows: Iterable[tuple[str, list[Captioned]]]) -> None:
    """Write titled rows of pictures to `folder`, and the list of them to `pictures.csv`."""
    folder.mkdir(exist_ok=True)
    listed = []
    for y, (title, pictures) in enumerate(rows):
        for x, picture in enumerate(pictures):
            name = f"{y}-{x}.jpg"
            Image.fromarray(centre(picture.pixels, SIDE, SIDE)).save(folder / name, quality=QUALITY)
            listed.append([y, title, name, picture.caption, picture.mark])
    write_csv(folder / "pictures.csv", ["row", "title", "file", "caption", "mark"], listed)
