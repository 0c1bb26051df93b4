"""A picture of validation images beside their nearest training images."""

from typing import Literal

import numpy as np
import torch
from PIL import Image as Picture
from pydantic import Field
from torch import Tensor

from cl.analyses import AnalysisConfig, Context
from cl.data.views import centre
from cl.evaluations import labels_of
from cl.features.extraction import Unit, extract

THUMBNAIL = 64  # pixels
GAP = 12  # between an image and its neighbours
GREEN, RED = "#2a9d5c", "#d1343a"  # frames of neighbours of the same class, and of another


class Config(AnalysisConfig):
    """`rows` validation images of different classes, each with its `nearest` training images.

    Unlabelled images are left out, unless the data has no labels at all.
    """

    kind: Literal["neighbours"]
    rows: int = Field(gt=0)
    nearest: int = Field(gt=0)


def analyze(config: Config, context: Context) -> dict[str, float]:
    """same_class, if there are labels: percent of the nearest training images that share an image's class."""
    encoder = Unit(context.method.backbone, [])
    readers = (context.train, context.val)
    bank, queries = (
        extract(encoder, reader, context.source, context.machine, reader.evaluated) for reader in readers
    )
    k = min(config.nearest, len(bank))
    nearest = torch.cat([(part @ bank.T).topk(k).indices for part in queries.split(256)])
    if not context.train.manifest.classes:
        draw(nearest, None, spread(len(queries), config.rows), context)
        return {}
    labels, truth = (labels_of(reader, context.machine.device) for reader in readers)
    same = labels[nearest] == truth[:, None]
    draw(nearest, same, _one_per_class(truth, config.rows), context)
    return {"same_class": 100 * float(same.float().mean())}


def draw(nearest: Tensor, same: Tensor | None, shown: Tensor, context: Context) -> None:
    """Write `neighbours.png`: a row per validation image with its nearest; red frames mark other classes.

    Args:
        nearest: (N, k), places among the evaluated training images.
        same: (N, k), whether they are of the image's class; None without labels.
        shown: the rows of `nearest` to show.
    """
    side = THUMBNAIL + 6
    sheet = Picture.new("RGB", (side * (nearest.shape[1] + 1) + GAP, side * len(shown)), "white")
    bank, queries = context.train.evaluated, context.val.evaluated
    for row, query in enumerate(shown.tolist()):
        _paste(sheet, context.val.pixels(queries[query]), 0, row * side, "white")
        for column, position in enumerate(nearest[query].tolist()):
            colour = "white" if same is None else GREEN if same[query, column] else RED
            x = (column + 1) * side + GAP
            _paste(sheet, context.train.pixels(bank[position]), x, row * side, colour)
    sheet.save(context.out / "neighbours.png")


def _one_per_class(truth: Tensor, rows: int) -> Tensor:
    """Positions of the first image of each of `rows` classes, spread over all classes."""
    first = torch.stack([(truth == number).nonzero()[0, 0] for number in truth.unique()])
    return first[spread(len(first), rows).to(first.device)]


def spread(number: int, rows: int) -> Tensor:
    """(min(rows, number),): places from 0 to number - 1, evenly spaced."""
    return torch.linspace(0, number - 1, min(rows, number)).round().long()


def _paste(sheet: Picture.Image, pixels: np.ndarray, x: int, y: int, frame: str) -> None:
    sheet.paste(Picture.new("RGB", (THUMBNAIL + 4, THUMBNAIL + 4), frame), (x, y))
    sheet.paste(Picture.fromarray(centre(pixels, THUMBNAIL, THUMBNAIL)), (x + 2, y + 2))
