"""A picture of what the encoder is trained on: images and their augmented views."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image as Picture
from torch import Tensor

from cl.data.sets import TrainSet
from cl.data.to_device import normalisation
from cl.data.views import centre

IMAGES, SIDE, GAP = 8, 64, 4


def draw(data: TrainSet, path: Path) -> None:
    """One row for each of the first IMAGES of the first batch: the image, then its views as encoded."""
    cpu = torch.device("cpu")
    batch = data[0]
    mean, std = normalisation(data.source, cpu)
    rows = [[data.reader.pixels(int(position))] for position in batch.positions[:IMAGES]]
    for view in data.inputs(cpu)(batch).views:
        for row, image in zip(rows, view, strict=False):
            row.append(_pixels(image * std + mean))
    step = SIDE + GAP
    sheet = Picture.new("RGB", (step * len(rows[0]) + GAP, step * len(rows) - GAP), "white")
    for y, row in enumerate(rows):
        for x, pixels in enumerate(row):
            picture = Picture.fromarray(centre(pixels, SIDE, SIDE))
            sheet.paste(picture, (step * x + (GAP if x else 0), step * y))
    sheet.save(path)


def _pixels(image: Tensor) -> np.ndarray:
    """(3, H, W) in [0, 1] to (H, W, 3) uint8."""
    return image.clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).contiguous().numpy()
