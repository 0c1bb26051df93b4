"""A changed copy of an image, a recoloured crop, must find the image among all validation images."""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field

from cl.data.order import Plan
from cl.data.sets import EvalSet, TrainSet
from cl.data.views import SingleView
from cl.evaluations import EvaluationConfig, EvaluationContext, write_images
from cl.evaluations._shared.shares import share
from cl.features.extraction import BATCH, extract_all, extract_views
from cl.features.knn import nearest
from cl.runtime.metric_info import BACKBONE, MetricInfo

NEAREST = (1, 5)  # numbers of nearest images that may contain the image itself


class Config(EvaluationConfig):
    """`queries`: maximum number of images to look up, by one augmented view each."""

    needs_labels: ClassVar = False
    name: ClassVar = "Image search"
    kind: Literal["retrieval"]
    queries: int = Field(gt=0)
    views: dict[str, SingleView] = Field(min_length=1, max_length=1, description="to find the image by")

    def numbers(self) -> dict[str, MetricInfo]:
        return {
            "hit1": MetricInfo("finds itself from a changed copy", "images nearest to their copy", "higher"),
            "hit5": MetricInfo("among the nearest five", "images among their copy's five nearest", "higher"),
            "queries": MetricInfo("queries", "images looked up"),
        }


def evaluate(config: Config, context: EvaluationContext) -> dict[str, dict[str, float]]:
    """hit1 and hit5 of the backbone's features, of each head and of each representation; number of queries.

    Percentage of queries whose own image, in the evaluation view, is among the 1 or 5 nearest by cosine.
    `images.csv` lists the images looked up and their places among the nearest, a column per representation;
    a place is empty if the image is not among them.
    """
    metrics: dict[str, dict[str, float]] = {}
    places: dict[str, list[int | str]] = {}
    queried = min(config.queries, len(context.val))
    batch = queried // math.ceil(queried / BATCH)  # an incomplete batch, of a few images, is left out
    for names, encoder in context.encoder.passes():
        images = EvalSet(context.val, context.transform)
        banks = extract_all(encoder, images, context.machine, count=context.progress.count)
        plan = Plan(len(context.val), batch, context.seed, ranks=1)
        views = TrainSet(context.val, context.transform, list(config.views.values()), plan)
        positions, queries = extract_views(encoder, views, context.machine, config.queries)
        looked_up = positions.cpu().numpy()
        for name, bank, rows in zip(names, banks, queries, strict=True):
            blocks = nearest(rows, bank, min(max(NEAREST), len(bank)))
            hits = torch.cat([found == positions[block, None] for block, _, found in blocks])  # (Q, k)
            metrics[name] = {
                f"hit{n}": share(hits[:, :n].any(1), context.val, looked_up)
                for n in NEAREST
                if n < len(context.val) or n == 1  # more find every image
            }
            places["place" if name == BACKBONE else name] = [
                row.index(True) + 1 if any(row) else "" for row in hits.tolist()
            ]
    metrics[BACKBONE]["queries"] = len(positions)
    write_images(context.out / "images.csv", context.val, looked_up, places)
    return metrics
