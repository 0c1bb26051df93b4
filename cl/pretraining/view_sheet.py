"""A picture of the encoder's training data: images and their augmented views."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image as Picture
from torch import Tensor

from cl.data.sets import TrainSet
from cl.data.views import centre
from cl.runtime.machine import Machine

IMAGES, SIDE, GAP = 8, 128, 4


def draw(data: TrainSet, path: Path) -> None:
    """Draw a column for each of the first IMAGES images of the first batch: the image above its views."""
    cpu = torch.device("cpu")
    batch = data[0]
    mean, std = data.transform.mean_and_std(cpu)
    columns = [[data.reader.pixels(int(position))] for position in batch.positions[:IMAGES]]
    for view in data.inputs(Machine(cpu, 0, "fp32"))(batch).views:
        for column, image in zip(columns, view, strict=False):
            column.append(_pixels(image * std + mean))
    step = SIDE + GAP
    sheet = Picture.new("RGB", (step * len(columns) - GAP, step * len(columns[0])), "white")
    for x, column in enumerate(columns):
        for y, pixels in enumerate(column):
            picture = Picture.fromarray(centre(pixels, SIDE, SIDE))
            sheet.paste(picture, (step * x, step * y + (GAP if y else 0)))
    sheet.save(path)


def _pixels(image: Tensor) -> np.ndarray:
    """(3, H, W) in [0, 1] to (H, W, 3) uint8."""
    return image.clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).contiguous().numpy()
