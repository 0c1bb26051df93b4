"""Test images with what was found in them."""

from pathlib import Path

import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw
from pycocotools import mask as rle

from cl.detection.average_precision import Detections
from cl.detection.data import DataSet

SHOWN, SHOWN_SCORE = 8, 0.5
COLOURS = (
    "#e63946",
    "#2a9d8f",
    "#f4a261",
    "#457b9d",
    "#8338ec",
    "#ffb703",
    "#06d6a0",
    "#fb5607",
    "#3a86ff",
    "#ff006e",
)


def draw(found: list[Detections], dataset: DataSet, path: Path) -> None:
    """Some test images side by side with the boxes and masks that score at least 0.5."""
    side = 256
    shown = list(zip(found, dataset.test, strict=True))[:SHOWN]
    columns = min(4, len(shown))
    sheet = Picture.new("RGB", (columns * side, -(-len(shown) // columns) * side), "white")
    for number, (detections, record) in enumerate(shown):
        picture = _overlay(record.picture(), detections, dataset.classes, side)
        sheet.paste(picture, (number % columns * side, number // columns * side))
    sheet.save(path)


def _overlay(picture: Picture.Image, detections: Detections, classes: list[str], side: int) -> Picture.Image:
    scale = side / max(picture.size)
    result = picture.resize((round(picture.width * scale), round(picture.height * scale)))
    pen = ImageDraw.Draw(result)
    for i in np.flatnonzero(detections.scores >= SHOWN_SCORE):
        colour = COLOURS[detections.labels[i] % len(COLOURS)]
        if detections.masks is not None:
            mask = Picture.fromarray(rle.decode(detections.masks[i]) * np.uint8(110)).resize(result.size)
            result.paste(Picture.new("RGB", result.size, colour), (0, 0), mask)
        x0, y0, x1, y1 = (float(v) * scale for v in detections.boxes[i])
        pen.rectangle((x0, y0, x1, y1), outline=colour, width=3)
        text = f"{classes[detections.labels[i]]} {detections.scores[i]:.2f}"
        top = y0 - 11 if y0 >= 11 else y1 + 1
        pen.rectangle((x0, top, x0 + 6 * len(text) + 3, top + 11), fill=colour)
        pen.text((x0 + 2, top), text, fill="white")
    return result
