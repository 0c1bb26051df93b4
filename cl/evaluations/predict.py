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
from cl.features.scores import correct_in_parts, nearest_agrees
from cl.runtime.metric_info import BACKBONE, MetricInfo, Share
from cl.statistics import inflation, separated

FOLDS = 5
OF_OTHERS = "images whose value is found from those of other groups"
NUMBERS = {
    "within_knn": MetricInfo("within, kNN", OF_OTHERS, "lower"),
    "within_linear": MetricInfo("within, logistic regression", OF_OTHERS, "lower"),
    "within_chance": MetricInfo("most frequent value of within", "images that have it"),
    "positive_nearest": MetricInfo("positive", "images whose nearest has the same value", "higher"),
    "positive_chance": MetricInfo("chance for positive", "images whose nearest would have it by chance"),
}


class Config(EvaluationConfig):
    """The first `images` of the shuffled index are used; of them, `k` neighbours vote."""

    needs_labels: ClassVar = False
    needs_values: ClassVar = True
    name: ClassVar = "Columns"
    kind: Literal["predict"]
    images: int = Field(gt=1)
    k: int = Field(gt=0)

    def numbers(self) -> dict[str, MetricInfo]:
        return NUMBERS


def evaluate(config: Config, context: EvaluationContext) -> dict[str, dict[str, float]]:
    """NUMBERS of the backbone's features, of each head and of each representation, for the columns used."""
    val, metrics = context.val, dict[str, dict[str, float]]()
    images = EvalSet(val, context.transform, np.arange(min(config.images, len(val))))
    for names, encoder in context.encoder.passes():
        found = extract_all(encoder, images, context.machine, count=context.progress.count)
        for name, features in zip(names, found, strict=True):
            metrics[name] = {}
            for role, measure in (("within", _within), ("positive", _positive)):
                values = val.values.get(role, np.full(len(val), -1))[: len(images)]
                known = np.flatnonzero(values >= 0)
                metrics[name] |= measure(features.cpu().numpy()[known], values[known], val, known, config.k)
    for name in metrics.keys() - {BACKBONE}:  # chance is the same
        metrics[name] = {key: each for key, each in metrics[name].items() if not key.endswith("_chance")}
    return metrics


def _within(x: np.ndarray, values: np.ndarray, val: Reader, at: np.ndarray, k: int) -> dict[str, float]:
    """By cross-validation, with images of a group in one fold; `at`: the images' positions.

    Groups are dealt to the folds in the order of their values. A value whose groups are all in one fold, such
    as that of one group, cannot be found and does not count.
    """
    names, groups = np.unique(separated(val.groups, len(val))[at], return_inverse=True)
    groups = np.random.default_rng(0).permutation(len(names))[groups]
    by_value = np.unique(np.stack([values, groups], 1), axis=0)[:, 1]  # groups, in the order of values
    folds = np.unique(by_value, return_index=True)[1][groups] % FOLDS
    parts = [(folds != fold, folds == fold) for fold in np.unique(folds)]
    counts = np.zeros(len(at), bool)
    for seen, asked in parts:
        counts[asked] = np.isin(values[asked], values[seen])
    if len(np.unique(values[counts])) < 2:
        return {}
    right = correct_in_parts(x, values, x, values, parts, k=k)
    shares = (share(torch.from_numpy(each[counts] > 0), val, at[counts]) for each in right.values())
    knn, linear, _ = (Share(each, each.images / inflation(len(parts))) for each in shares)
    chance = 100 * float(np.unique(values[counts], return_counts=True)[1].max()) / counts.sum()
    return {"within_knn": knn, "within_linear": linear, "within_chance": chance}


def _positive(x: np.ndarray, values: np.ndarray, val: Reader, at: np.ndarray, k: int) -> dict[str, float]:
    """Of the images that share their value with another; one neighbour votes, whatever k."""
    shared, right, chance = nearest_agrees(x, values)
    if not shared.any():
        return {}
    return {"positive_nearest": share(torch.from_numpy(right), val, at[shared]), "positive_chance": chance}
