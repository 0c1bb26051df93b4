"""How well features tell the values of `dataset.within` and `dataset.positive` of validation images."""

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.evaluations import EvaluationConfig, EvaluationContext
from cl.evaluations._shared.shares import share
from cl.features.extraction import extract_all
from cl.features.scores import correct_by, nearest_agrees
from cl.runtime.metric_info import MetricInfo
from cl.statistics import separated

FOLDS = 5


class Config(EvaluationConfig):
    """The first `images` of the shuffled index are used; of them, `k` neighbours vote."""

    needs_labels: ClassVar = False
    needs_values: ClassVar = True
    kind: Literal["predict"]
    images: int = Field(gt=1)
    k: int = Field(gt=0)

    @property
    def title(self) -> str:
        return "Columns"

    def numbers(self) -> dict[str, MetricInfo]:
        of_others = "images whose value of dataset.within is found from images of other groups"
        return {
            "within_knn": MetricInfo("within, kNN", of_others, "lower"),
            "within_linear": MetricInfo("within, logistic regression", of_others, "lower"),
            "within_chance": MetricInfo("most frequent value of within", "percent"),
            "positive_nearest": MetricInfo(
                "positive, nearest image",
                "images whose nearest has their value of dataset.positive",
                "higher",
            ),
            "positive_chance": MetricInfo("chance for positive", "percent"),
        }


def evaluate(config: Config, context: EvaluationContext) -> dict[str, dict[str, float]]:
    """The percentages of the backbone's features, of each head and of each representation."""
    positions = np.arange(min(config.images, len(context.val)))
    images = EvalSet(context.val, context.transform, positions)
    metrics: dict[str, dict[str, float]] = {}
    for names, encoder in context.encoder.passes():
        found = extract_all(encoder, images, context.machine, count=context.progress.count)
        for name, features in zip(names, found, strict=True):
            rows = features.cpu().numpy()
            metrics[name] = _within(rows, context.val, config.k) | _positive(rows, context.val)
    return metrics


def _known(val: Reader, role: str, images: int) -> tuple[np.ndarray, np.ndarray]:
    """The positions (n,) of the images with a value of the column, and their values."""
    values = val.values.get(role, np.full(images, -1))[:images]
    return (known := np.flatnonzero(values >= 0)), values[known]


def _within(features: np.ndarray, val: Reader, k: int) -> dict[str, float]:
    """By cross-validation; images of a group are in one fold."""
    known, values = _known(val, "within", len(features))
    if len(np.unique(values)) < 2:
        return {}
    groups = np.unique(separated(val.groups, len(val))[known], return_inverse=True)[1]
    folds = np.random.default_rng(0).permutation(groups.max() + 1)[groups] % FOLDS
    right = {"kNN": np.zeros(len(known)), "logistic regression": np.zeros(len(known))}
    for fold in np.unique(folds):
        seen, held = folds != fold, folds == fold
        if len(np.unique(values[seen])) > 1:
            sides = features[known][seen], values[seen], features[known][held], values[held]
            found = correct_by(*sides, k=min(k, int(seen.sum())))
            for measure, each in right.items():
                each[held] = found[measure]
    knn, linear = (share(torch.from_numpy(each > 0), val, known) for each in right.values())
    chance = 100 * float(np.unique(values, return_counts=True)[1].max()) / len(known)
    return {"within_knn": knn, "within_linear": linear, "within_chance": chance}


def _positive(features: np.ndarray, val: Reader) -> dict[str, float]:
    """Of the images that share their value with another."""
    known, values = _known(val, "positive", len(features))
    shared, right, chance = nearest_agrees(features[known], values)
    if not shared.any():
        return {}
    found = share(torch.from_numpy(right), val, known[shared])
    return {"positive_nearest": found, "positive_chance": chance}
