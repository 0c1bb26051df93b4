"""Weighted k-nearest-neighbour classification by the labelled training images (InstDisc, section 3.4)."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.evaluations import EvaluationConfig, EvaluationContext, labels_of, write_predictions
from cl.evaluations._shared.shares import share
from cl.features.extraction import extract_all
from cl.features.knn import check_k, classify, top1
from cl.runtime.metric_info import BACKBONE, MetricInfo
from cl.runtime.tables import write_csv


class Config(EvaluationConfig):
    """`k` neighbours vote with weight exp(cosine / temperature).

    grid_k: additional values, evaluated in the same pass and written to `grid.csv`.
    bank: number of training images that vote, a random sample; null: all.
    half: store the bank in float16.
    """

    name: ClassVar = "Nearest neighbours"
    kind: Literal["knn"]
    k: int = Field(gt=0)
    temperature: float = Field(gt=0)
    grid_k: list[Annotated[int, Field(gt=0)]]
    bank: int | None = Field(gt=0)
    half: bool

    def check(self, train: Reader, val: Reader) -> None:
        check_k(max(self.all_k), len(train.labelled[: self.bank]))

    def for_few_images(self, train: Reader, val: Reader) -> Self:
        most = max(1, len(train.labelled[: self.bank]))
        fewer = {"k": min(self.k, most), "grid_k": [k for k in self.grid_k if k <= most]}
        return self.model_copy(update=fewer)

    def numbers(self) -> dict[str, MetricInfo]:
        voted = f"images whose {self.k} nearest training images vote for their class"
        return {"top1": MetricInfo("top-1", voted, "higher")}

    @property
    def all_k(self) -> list[int]:
        return [self.k, *self.grid_k]


def evaluate(config: Config, context: EvaluationContext) -> dict[str, dict[str, float]]:
    """top1 of the backbone's features, of each head and of each representation."""
    train, val, device = context.train, context.val, context.machine.device
    labels, truth = labels_of(train, device, config.bank), labels_of(val, device)
    vote = partial(classify, labels=labels, classes=len(context.classes), temperature=config.temperature)
    metrics: dict[str, dict[str, float]] = {}
    answers: dict[str, Tensor] = {}
    grid = []
    for name, bank, queries in _features(config, context):
        predicted = vote(queries, bank, k=config.all_k)  # (k, n)
        metrics[name] = {"top1": share(predicted[0] == truth, val, val.labelled)}
        for k, classes in zip(config.all_k, predicted, strict=True):
            grid.append((name, k, round(top1(classes, truth), 2)))
        answers[name] = predicted[0]
    write_predictions(answers.pop(BACKBONE), context, answers)
    rows = dict.fromkeys(grid)  # without repeated settings
    write_csv(context.out / "grid.csv", ["representation", "k", "top1"], rows)
    return metrics


def _features(config: Config, context: EvaluationContext) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Name, bank and queries of the backbone and its heads (one pass), then of each representation."""
    bank_type = torch.float16 if config.half else torch.float32
    train, val, transform = context.train, context.val, context.transform
    for names, encoder in context.encoder.passes():
        extract = partial(extract_all, encoder, machine=context.machine, count=context.progress.count)
        banks = extract(EvalSet(train, transform, train.evaluated(config.bank)), dtype=bank_type)
        queries = extract(EvalSet(val, transform, val.labelled))
        yield from zip(names, banks, queries, strict=True)
