"""A picture of the encoder's training data: images and their augmented views."""

from pathlib import Path

import torch
from PIL import Image as Picture

from cl.data.sets import TrainSet
from cl.data.views import centre
from cl.runtime.machine import Machine

IMAGES, SIDE, GAP = 8, 128, 4


def draw(data: TrainSet, path: Path) -> None:
    """Draw a column for each of the first IMAGES images of the first batch: the image above its views."""
    cpu = torch.device("cpu")
    batch = data[0]
    transform = data.transform
    columns = [[transform.picture(data.reader.pixels(int(x)))] for x in batch.positions[:IMAGES]]
    for view in data.inputs(Machine(cpu, 0, "fp32"))(batch).views:
        for column, image in zip(columns, view, strict=False):
            column.append(transform.picture_of_view(image))
    step = SIDE + GAP
    sheet = Picture.new("RGB", (step * len(columns) - GAP, step * len(columns[0])), "white")
    for x, column in enumerate(columns):
        for y, pixels in enumerate(column):
            picture = Picture.fromarray(centre(pixels, SIDE, SIDE))
            sheet.paste(picture, (step * x, step * y + (GAP if y else 0)))
    sheet.save(path)
