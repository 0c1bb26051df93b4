"""A sheet of test images with their detections drawn in."""

from pathlib import Path

import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw
from pycocotools import mask as rle

from cl.detection.average_precision import Detections
from cl.detection.records import DataSet

SHOWN, SHOWN_SCORE = 8, 0.5
SIDE = 256  # of an image on the sheet, pixels
MASK_OPACITY = 110  # of 255
COLOURS = (
    "#e63946", "#2a9d8f", "#f4a261", "#457b9d", "#8338ec",
    "#ffb703", "#06d6a0", "#fb5607", "#3a86ff", "#ff006e",
)  # fmt: skip


def draw(detections: list[Detections], dataset: DataSet, path: Path) -> None:
    """Write the first test images side by side, with the boxes and masks that score at least 0.5."""
    shown = list(zip(detections, dataset.test, strict=True))[:SHOWN]
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    sheet = Picture.new("RGB", (columns * SIDE, rows * SIDE), "white")
    for number, (detected, record) in enumerate(shown):
        row, column = divmod(number, columns)
        sheet.paste(_overlay(record.picture(), detected, dataset.classes), (column * SIDE, row * SIDE))
    sheet.save(path)


def _overlay(picture: Picture.Image, detections: Detections, classes: list[str]) -> Picture.Image:
    scale = SIDE / max(picture.size)
    result = picture.resize([max(1, round(side * scale)) for side in picture.size])
    pen = ImageDraw.Draw(result)
    for i in np.flatnonzero(detections.scores >= SHOWN_SCORE):
        label = detections.labels[i]
        colour = COLOURS[label % len(COLOURS)]
        if detections.masks is not None:
            opacity = Picture.fromarray(rle.decode(detections.masks[i]) * np.uint8(MASK_OPACITY))
            result.paste(Picture.new("RGB", result.size, colour), (0, 0), opacity.resize(result.size))
        box = [float(v) * scale for v in detections.boxes[i]]
        pen.rectangle(box, outline=colour, width=3)
        caption = f"{classes[label]} {detections.scores[i]:.2f}"
        x0, y0, _, y1 = box
        top = y0 - 11 if y0 >= 11 else y1 + 1  # below the box if there is no room above
        pen.rectangle((x0, top, x0 + 6 * len(caption) + 3, top + 11), fill=colour)
        pen.text((x0 + 2, top), caption, fill="white")
    return result
