"""Weighted k-nearest-neighbour classification on the labelled training images' features (InstDisc, section 3.4)."""

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image as Picture
from pydantic import Field
from torch import Tensor

from cl.evaluations import Context, labels_of, write_per_class
from cl.features import extract
from cl.knn import top1, vote
from cl.strict import Strict
from cl.views import centre

SHOWN, NEIGHBOURS, THUMBNAIL = 8, 8, 64


class Config(Strict):
    """`k` neighbours vote with weight exp(cosine / temperature); `memory` bounds the similarities held at a time, MiB."""

    kind: Literal["knn"]
    k: int = Field(gt=0)
    temperature: float = Field(gt=0)
    memory: int = Field(gt=0, description="MiB")


def evaluate(config: Config, context: Context) -> dict[str, float]:
    """top1 of the backbone's features, and `<name>_top1` of every other representation; a picture of neighbours."""
    labels, truth = (labels_of(reader, context.machine.device) for reader in (context.train, context.val))
    metrics = {}
    for name, encoder in {"backbone": context.backbone, **context.representations}.items():
        bank, queries = (
            F.normalize(extract(encoder, reader, context.source, context.machine, reader.labelled), dim=1)
            for reader in (context.train, context.val)
        )
        settings = config.model_dump(exclude={"kind"})
        votes, nearest = vote(queries, bank, labels, len(context.classes), **settings)
        predicted = votes.argmax(1)
        metrics["top1" if name == "backbone" else f"{name}_top1"] = top1(predicted, truth)
        if name == "backbone":
            write_per_class(predicted, truth, context)
            draw_neighbours(nearest, labels, truth, context)
    return metrics


def draw_neighbours(nearest: Tensor, labels: Tensor, truth: Tensor, context: Context) -> None:
    """`neighbours.png`: a row for each of some validation images, then its nearest training images; red: another class."""
    first = torch.stack([(truth == number).nonzero()[0, 0] for number in range(len(context.classes))])
    shown = first[torch.linspace(0, len(first) - 1, min(SHOWN, len(first))).round().long().to(first.device)]
    side = THUMBNAIL + 6
    columns = min(NEIGHBOURS, nearest.shape[1])
    bank = context.train.labelled  # `nearest` counts within it
    sheet = Picture.new("RGB", (side * (columns + 1) + 12, side * len(shown)), "white")
    for row, query in enumerate(shown.tolist()):
        _paste(sheet, context.val.pixels(query), 0, row * side, "white")
        for column, position in enumerate(nearest[query, :columns].tolist()):
            right = bool(labels[position] == truth[query])
            x = (column + 1) * side + 12
            _paste(sheet, context.train.pixels(bank[position]), x, row * side, "#2a9d5c" if right else "#d1343a")
    sheet.save(context.out / "neighbours.png")


def _paste(sheet: Picture.Image, pixels: np.ndarray, x: int, y: int, frame: str) -> None:
    sheet.paste(Picture.new("RGB", (THUMBNAIL + 4, THUMBNAIL + 4), frame), (x, y))
    sheet.paste(Picture.fromarray(centre(pixels, THUMBNAIL, THUMBNAIL)), (x + 2, y + 2))
