"""Pictures of validation images beside the training images that the encoder finds most similar."""

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

THUMBNAIL = 64


class Config(BaseConfig):
    """`rows` of validation images, one of a class, each with its `nearest` labelled training images."""

    kind: Literal["neighbours"]
    rows: int = Field(gt=0)
    nearest: int = Field(gt=0)


def analyze(config: Config, context: Context) -> dict[str, float]:
    """same_class: percent of the nearest training images that are of the validation image's class, over all of these."""
    encoder = Unit(context.method.backbone, [])
    bank, queries = (
        extract(encoder, reader, context.source, context.machine, reader.labelled)
        for reader in (context.train, context.val)
    )
    labels, truth = (labels_of(reader, context.machine.device) for reader in (context.train, context.val))
    nearest = torch.cat(
        [(part @ bank.T).topk(min(config.nearest, len(bank))).indices for part in queries.split(256)]
    )
    draw(nearest, labels, truth, context, config.rows)
    return {"same_class": 100 * float((labels[nearest] == truth[:, None]).float().mean())}


def draw(nearest: Tensor, labels: Tensor, truth: Tensor, context: Context, rows: int) -> None:
    """`neighbours.png`: a row for each of some validation images, then its nearest training images; red: another class.

    Args:
        nearest: (N, k), positions among the labelled training images.
        labels, truth: of the labelled training images and of the validation images.
    """
    first = torch.stack([(truth == number).nonzero()[0, 0] for number in truth.unique()])
    shown = first[torch.linspace(0, len(first) - 1, min(rows, len(first))).round().long().to(first.device)]
    side = THUMBNAIL + 6
    sheet = Picture.new("RGB", (side * (nearest.shape[1] + 1) + 12, side * len(shown)), "white")
    bank, queries = context.train.labelled, context.val.labelled
    for row, query in enumerate(shown.tolist()):
        _paste(sheet, context.val.pixels(queries[query]), 0, row * side, "white")
        for column, position in enumerate(nearest[query].tolist()):
            right = bool(labels[position] == truth[query])
            x = (column + 1) * side + 12
            _paste(
                sheet, context.train.pixels(bank[position]), x, row * side, "#2a9d5c" if right else "#d1343a"
            )
    sheet.save(context.out / "neighbours.png")


def _paste(sheet: Picture.Image, pixels: np.ndarray, x: int, y: int, frame: str) -> None:
    sheet.paste(Picture.new("RGB", (THUMBNAIL + 4, THUMBNAIL + 4), frame), (x, y))
    sheet.paste(Picture.fromarray(centre(pixels, THUMBNAIL, THUMBNAIL)), (x + 2, y + 2))
