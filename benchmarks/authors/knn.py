"""Weighted kNN beside lightly's and solo-learn's: no prediction may differ."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.authors.harness.comparison import Agreement, Numbers
from benchmarks.authors.harness.experiment import uniform
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import module_of_file, stub
from cl.features.knn import classify

LIGHTLY = Source("lightly-ai/lightly", "e8d317f", "lightly/utils/benchmarking/knn.py")
SOLO = Source("vturrisi/solo-learn", "9187ea3", "solo/utils/knn.py")
CLASSES, BANK, QUERIES, WIDTH = 10, 2000, 500, 16
GRID = [(k, temperature) for k in (1, 20, 200) for temperature in (0.02, 0.07, 0.5)]


@dataclass(frozen=True)
class Classifying:
    """A comparison; `agreeing` gives the fraction of queries for which they predict the same."""

    name: str
    source: Source
    agreeing: Callable[..., float]
    processes: int = 1
    tolerance: float = 0.0

    def compare(self, folder: Path) -> tuple[Agreement, Numbers]:
        """The largest fraction of predictions that differ."""
        agreeing = [self.agreeing(folder, *data(), predicted(*cell), *cell) for cell in GRID]
        return {"predictions that differ": 1 - min(agreeing)}, self.replay()

    def replay(self) -> Numbers:
        """How often each class is predicted."""
        return {
            f"k {k}, temperature {temperature}": torch.bincount(predicted(k, temperature)).tolist()
            for k, temperature in GRID
        }


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Unit rows of queries and bank, around a centre for each class, and the labels of the bank."""
    generator = torch.Generator().manual_seed(0)
    centres = uniform((CLASSES, WIDTH), generator)
    labels = torch.arange(BANK) % CLASSES
    bank = centres[labels] + 2 * uniform((BANK, WIDTH), generator)
    queries = centres[torch.arange(QUERIES) % CLASSES] + 2 * uniform((QUERIES, WIDTH), generator)
    return F.normalize(queries, dim=1), F.normalize(bank, dim=1), labels


def predicted(k: int, temperature: float) -> Tensor:
    """(Q,): our predictions."""
    return classify(*data(), CLASSES, k=[k], temperature=temperature)[0]


def lightly(
    folder: Path, queries: Tensor, bank: Tensor, labels: Tensor, ours: Tensor, k: int, temperature: float
) -> float:
    knn_predict = module_of_file(folder / LIGHTLY.file).knn_predict
    theirs = knn_predict(queries, bank.T, labels, CLASSES, knn_k=k, knn_t=temperature)[:, 0]
    return float((theirs == ours).double().mean())


def solo(
    folder: Path, queries: Tensor, bank: Tensor, labels: Tensor, ours: Tensor, k: int, temperature: float
) -> float:
    """Theirs only tells its accuracy: here the one with which it predicts our predictions."""
    assert len(ours.unique()) == CLASSES, "it counts the classes of the queries"
    stub("torchmetrics.metric", Metric=Metric)
    classifier = module_of_file(folder / SOLO.file).WeightedKNNClassifier(k, temperature)
    classifier.update(bank, labels, queries, ours)
    return classifier.compute()[0] / 100


class Metric:
    """What solo-learn uses of torchmetrics' class."""

    def __init__(self, **options: Any) -> None:
        self.reset()

    def add_state(self, name: str, default: list, **options: Any) -> None:
        """Add a list."""
        setattr(self, name, default)

    def reset(self) -> None:
        """Forget nothing: each classifier is used once."""


COMPARISONS = [
    Classifying("knn_lightly", LIGHTLY, lightly),
    Classifying("knn_solo_learn", SOLO, solo),
]
