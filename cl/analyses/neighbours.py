"""A picture of validation images beside their nearest training images."""

from typing import Literal

import numpy as np
import torch
from PIL import Image as Picture
from pydantic import Field
from torch import Tensor

from cl.analyses import Context
from cl.data.views import centre
from cl.evaluations import labels_of
from cl.features.extraction import Unit, extract
from cl.runtime.base_config import BaseConfig

THUMBNAIL = 64  # pixels
GAP = 12  # between an image and its neighbours
GREEN, RED = "#2a9d5c", "#d1343a"  # frames of neighbours of the same class, and of another


class Config(BaseConfig):
    """`rows` validation images of different classes, each with its `nearest` labelled training images."""

    kind: Literal["neighbours"]
    rows: int = Field(gt=0)
    nearest: int = Field(gt=0)


def analyze(config: Config, context: Context) -> dict[str, float]:
    """same_class: percent of nearest training images of the same class, over all validation images."""
    encoder = Unit(context.method.backbone, [])
    readers = (context.train, context.val)
    bank, queries = (
        extract(encoder, reader, context.source, context.machine, reader.labelled) for reader in readers
    )
    labels, truth = (labels_of(reader, context.machine.device) for reader in readers)
    k = min(config.nearest, len(bank))
    nearest = torch.cat([(part @ bank.T).topk(k).indices for part in queries.split(256)])
    draw(nearest, labels, truth, context, config.rows)
    return {"same_class": 100 * float((labels[nearest] == truth[:, None]).float().mean())}


def draw(nearest: Tensor, labels: Tensor, truth: Tensor, context: Context, rows: int) -> None:
    """Write `neighbours.png`: a row per validation image with its nearest; red frames mark other classes.

    Args:
        nearest: (N, k), positions among the labelled training images.
        labels, truth: classes of the labelled training and validation images.
    """
    shown = _one_per_class(truth, rows)
    side = THUMBNAIL + 6
    sheet = Picture.new("RGB", (side * (nearest.shape[1] + 1) + GAP, side * len(shown)), "white")
    bank, queries = context.train.labelled, context.val.labelled
    for row, query in enumerate(shown.tolist()):
        _paste(sheet, context.val.pixels(queries[query]), 0, row * side, "white")
        for column, position in enumerate(nearest[query].tolist()):
            colour = GREEN if labels[position] == truth[query] else RED
            x = (column + 1) * side + GAP
            _paste(sheet, context.train.pixels(bank[position]), x, row * side, colour)
    sheet.save(context.out / "neighbours.png")


def _one_per_class(truth: Tensor, rows: int) -> Tensor:
    """Positions of the first image of each of `rows` classes, spread over all classes."""
    first = torch.stack([(truth == number).nonzero()[0, 0] for number in truth.unique()])
    spread = torch.linspace(0, len(first) - 1, min(rows, len(first))).round().long()
    return first[spread.to(first.device)]


def _paste(sheet: Picture.Image, pixels: np.ndarray, x: int, y: int, frame: str) -> None:
    sheet.paste(Picture.new("RGB", (THUMBNAIL + 4, THUMBNAIL + 4), frame), (x, y))
    sheet.paste(Picture.fromarray(centre(pixels, THUMBNAIL, THUMBNAIL)), (x + 2, y + 2))
