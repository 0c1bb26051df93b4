"""Weighted k-nearest-neighbour classification by the labelled training images (InstDisc, section 3.4)."""

import csv
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.evaluations import Context, EvaluationConfig, labels_of, write_predictions
from cl.evaluations._shared.shares import share
from cl.features.extraction import extract_all
from cl.features.knn import check_k, classify, top1
from cl.runtime.metric_info import BACKBONE, MetricInfo


class Config(EvaluationConfig):
    """`k` neighbours vote with weight exp(cosine / temperature).

    grid_k, grid_temperature: additional values, evaluated in the same pass and written to `grid.csv`.
    bank: how many training images vote, the first of the shuffled index; null: all.
    half: store the bank in float16.
    leave_one_out: also classify each training image by all others that are not of its group.
    """

    kind: Literal["knn"]
    k: int = Field(gt=0)
    temperature: float = Field(gt=0)
    grid_k: list[int]
    grid_temperature: list[float]
    bank: int | None = Field(gt=0)
    half: bool
    leave_one_out: bool

    @field_validator("grid_k", "grid_temperature")
    @classmethod
    def _positive(cls, values: list[float]) -> list[float]:
        if wrong := [value for value in values if value <= 0]:
            raise ValueError(f"{wrong[0]} must be greater than 0")
        return values

    def check(self, train: Reader, val: Reader) -> None:
        images = train.labelled[: self.bank]
        left_out = int(np.unique(_owners(train, images), return_counts=True)[1].max()) if len(images) else 0
        check_k(max(self.all_k), len(images) - left_out * self.leave_one_out)

    def numbers(self) -> dict[str, MetricInfo]:
        voted = f"images whose {self.k} nearest training images vote for their class"
        others = f"training images whose {self.k} nearest others, outside their group, vote for their class"
        return {
            "top1": MetricInfo("top-1", voted, "higher"),
            "leave_one_out_top1": MetricInfo("top-1 of training images", others, "higher"),
        }

    @property
    def all_k(self) -> list[int]:
        return [self.k, *self.grid_k]

    @property
    def all_temperatures(self) -> list[float]:
        return [self.temperature, *self.grid_temperature]


def evaluate(config: Config, context: Context) -> dict[str, dict[str, float]]:
    """top1 of the backbone's features, of each head and of each representation."""
    train, val, device = context.train, context.val, context.machine.device
    labels, truth = labels_of(train, device, config.bank), labels_of(val, device)
    owners = torch.from_numpy(_owners(train, train.labelled[: config.bank])).to(device)
    metrics: dict[str, dict[str, float]] = {}
    grid = []
    for name, bank, queries in _features(config, context):
        predicted = _classify(config, context, queries, bank, labels)
        metrics[name] = {"top1": share(predicted[0, 0] == truth, val, val.labelled)}
        for i, k in enumerate(config.all_k):
            for j, temperature in enumerate(config.all_temperatures):
                grid.append((name, k, temperature, round(top1(predicted[i, j], truth), 2)))
        if config.leave_one_out:
            right = _classify(config, context, bank, bank, labels, (owners, owners))[0, 0] == labels
            metrics[name]["leave_one_out_top1"] = share(right, train, train.labelled[: config.bank])
        if name == BACKBONE:
            write_predictions(predicted[0, 0], truth, context)
    with (context.out / "grid.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("representation", "k", "temperature", "top1"), *dict.fromkeys(grid)])
    return metrics


def _features(config: Config, context: Context) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Name, bank and queries of the backbone and its heads (one pass), then of each representation."""
    half = torch.float16 if config.half else torch.float32
    train, val = context.train, context.val
    parts = ((train, train.labelled[: config.bank], half), (val, val.labelled, torch.float32))
    for names, encoder in context.encoder.passes():
        banks, queries = (
            extract_all(
                encoder,
                EvalSet(reader, context.transform, positions),
                context.machine,
                dtype=dtype,
                count=context.progress.count,
            )
            for reader, positions, dtype in parts
        )
        yield from zip(names, banks, queries, strict=True)


def _classify(
    config: Config,
    context: Context,
    queries: Tensor,
    bank: Tensor,
    labels: Tensor,
    owners: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Predicted classes for each k and temperature; see `cl.features.knn.classify`."""
    predicted, _ = classify(
        queries,
        bank,
        labels,
        len(context.classes),
        k=config.all_k,
        temperature=config.all_temperatures,
        owners=owners,
    )
    return predicted


def _owners(train: Reader, positions: np.ndarray) -> np.ndarray:
    """(n,) int64: equal for images of one group, and different for all others."""
    alone = -1 - np.arange(len(positions))
    groups = alone if train.groups is None else train.groups[positions]
    return np.where(groups < 0, alone, groups)
