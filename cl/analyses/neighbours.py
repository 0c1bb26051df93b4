"""A picture of validation images beside their nearest training images."""

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cl.analyses import AnalysisConfig, AnalysisContext
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.data.transform import Transform
from cl.evaluations import Captioned, labels_of, write_pictures
from cl.features.extraction import Unit, extract
from cl.features.knn import nearest
from cl.runtime.metric_info import MetricInfo

NEAREST = 8  # training images beside each


class Config(AnalysisConfig):
    """`rows` validation images of different classes, each with its nearest training images.

    Unlabelled images are skipped, unless all images are unlabelled.
    """

    kind: Literal["neighbours"]
    rows: int = Field(gt=0)
    bank: int | None = Field(gt=0, description="training images to choose from; null: all")
    queries: int | None = Field(gt=0, description="validation images; null: all")

    def numbers(self) -> dict[str, MetricInfo]:
        meaning = "percent of the nearest training images with the image's class"
        return {"same_class": MetricInfo("neighbours of the same class", meaning, "higher")}


def analyze(config: Config, context: AnalysisContext) -> dict[str, float]:
    """same_class, if there are labels: percent of the nearest training images with an image's class."""
    encoder = Unit(context.backbone, [])
    parts = ((context.train, config.bank), (context.val, config.queries))
    images = [EvalSet(reader, context.transform, reader.evaluated(most)) for reader, most in parts]
    bank, queries = (extract(encoder, each, context.machine, context.progress.count) for each in images)
    blocks = nearest(queries, bank, min(NEAREST, len(bank)))
    found = torch.cat([positions for _, _, positions in blocks])
    if not context.train.manifest.classes:
        draw(found, spread(len(queries), config.rows), images, context)
        return {}
    labels, truth = (labels_of(reader, context.machine.device, most) for reader, most in parts)
    same = labels[found] == truth[:, None]
    first_of_class = torch.from_numpy(np.unique(truth.cpu().numpy(), return_index=True)[1])
    draw(found, first_of_class[spread(len(first_of_class), config.rows)], images, context)
    return {"same_class": 100 * float(same.float().mean())}


def draw(found: Tensor, shown: Tensor, images: list[EvalSet], context: AnalysisContext) -> None:
    """Write `pictures/`: the images of the rows `shown` of `found` (N, k), each with its k neighbours."""
    bank, queries = (each.positions for each in images)
    rows = []
    for row in shown.tolist():
        query = int(queries[row])
        label = int(context.val.labels(query))
        positions = bank[found[row].cpu()].tolist()
        picture = _captioned(context.val, query, context.transform)
        near = [_captioned(context.train, x, context.transform, label) for x in positions]
        rows.append((picture.caption, [picture, *near]))
    write_pictures(context.out / "pictures", rows)


def _captioned(reader: Reader, position: int, transform: Transform, label: int | None = None) -> Captioned:
    """An image captioned with its class; marked right or wrong by comparison with `label`."""
    pixels, own = transform.picture(reader.pixels(position)), int(reader.labels(position))
    if own < 0:
        return Captioned(pixels, "")
    mark: Literal["", "right", "wrong"] = "" if label is None else "right" if own == label else "wrong"
    return Captioned(pixels, reader.manifest.classes[own], mark)


def spread(number: int, rows: int) -> Tensor:
    """(min(rows, number),): places from 0 to number - 1, evenly spaced."""
    return torch.linspace(0, number - 1, min(rows, number)).round().long()
