"""Linear evaluation: classifiers on the frozen backbone's pooled features."""

import copy
import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from cl.batch import Batch
from cl.data.order import Plan
from cl.data.sets import TrainSet
from cl.data.views import View
from cl.evaluations import Context, labels_of, plan_of, write_per_class
from cl.features.extraction import extract, fingerprint
from cl.features.knn import top1
from cl.runtime.base_config import BaseConfig, Seeds
from cl.training import optim
from cl.training.loop import Data, train
from cl.training.tasks import Probes, classifier

TOP = ("top1", "top5")


class Config(BaseConfig):
    """One classifier for each pair of `base_lrs` and `weight_decays`, all trained in one pass over the backbone.

    An empty list stands for the value of `optim`, which a longer one includes.

    features: `augmented`, of the training view, as the papers do it; or `cached`, of the evaluation's view, extracted once:
        quick, another protocol, and told apart in the results by its metrics' names.
    seeds: the training is repeated with each, for mean and standard deviation; null: once, with the run's seed.
    """

    kind: Literal["linear"]
    features: Literal["augmented", "cached"]
    base_lrs: list[Annotated[float, Field(gt=0)]]
    weight_decays: list[Annotated[float, Field(ge=0)]]
    seeds: Seeds | None
    optim: optim.Config
    views: dict[str, View] = Field(max_length=1, description="the training view, if features=augmented")

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if bool(self.views) != (self.features == "augmented"):
            raise ValueError(
                f"features={self.features} with {len(self.views)} views: augmented takes one, cached none"
            )
        for name, values, usual in (
            ("base_lr", self.base_lrs, self.optim.base_lr),
            ("weight_decay", self.weight_decays, self.optim.weight_decay),
        ):
            if values and usual not in values:
                raise ValueError(
                    f"{name}s={values} leaves out optim.{name}={usual}, which would have no effect; add it or change it"
                )
        if self.optim.clip and len(self.grid) > 1:
            raise ValueError(
                f"optim.clip={self.optim.clip} would tie {len(self.grid)} classifiers together; choose null"
            )
        return self

    @property
    def grid(self) -> list[tuple[float, float]]:
        """Base learning rate and weight decay of each classifier."""
        return list(
            product(self.base_lrs or [self.optim.base_lr], self.weight_decays or [self.optim.weight_decay])
        )


@dataclass
class Stored:
    """Features (n, D) and labels (n,) on the device, as `cl.training.loop` takes its data."""

    features: Tensor
    labels: Tensor
    plan: Plan

    def batches(self, start: int, stop: int, workers: int) -> Iterator[Batch]:
        """Features and labels of steps start to stop - 1."""
        for step in range(start, stop):
            rows = torch.from_numpy(self.plan.step(step)[1]).to(self.features.device)
            yield Batch([self.features[rows]], self.labels[rows], rows)

    def inputs(self, device: torch.device) -> Callable[[Batch], Batch]:
        """Batches are made on the device."""
        return lambda batch: batch


def evaluate(config: Config, context: Context) -> dict[str, float]:
    """Of the best classifier: top1 and top5 after the last epoch, best_top1 and best_top5 of its or another's best epoch.

    The validation images choose the classifier and the epoch, as in the papers; `heads.csv` has all of them.

    Raises:
        AssertionError: a tensor of the backbone has changed.
    """
    backbone, machine = context.backbone, context.machine
    before = fingerprint(backbone)
    truth, queries = (
        labels_of(context.val, machine.device),
        extract(backbone, context.val, context.source, machine),
    )
    torch.manual_seed(context.seed)
    first = classifier(backbone.fc_features, len(context.classes))
    heads = nn.ModuleList(copy.deepcopy(first) for _ in config.grid).to(machine.device)
    parts = [
        optim.Part(head, lr / config.optim.base_lr, decay)
        for head, (lr, decay) in zip(heads, config.grid, strict=True)
    ]

    def each_epoch(_: int) -> dict[str, float]:
        scores = [_score(head, queries, truth) for head in heads]
        row = {f"head_{i}_{name}": value for i, score in enumerate(scores) for name, value in score.items()}
        return {"top1": max(score["top1"] for score in scores), **row}

    cached = config.features == "cached"
    try:
        rows = train(
            Probes(None if cached else backbone, heads, machine),
            _data(config, context),
            config.optim,
            optim.build(config.optim, parts),
            progress=context.progress,
            checkpoints=context.checkpoints("linear"),
            each_epoch=each_epoch,
        )
    except FloatingPointError as error:
        if len(parts) == 1:
            raise
        rates = [lr for lr, _ in config.grid]
        raise FloatingPointError(
            f"{error}. One of the {len(parts)} classifiers did this: leave out base_lrs={max(rates)}"
        ) from error
    assert fingerprint(backbone) == before, "linear evaluation has changed the backbone"
    table = [_summary(rows, i, *grid) for i, grid in enumerate(config.grid)]
    _write(table, context)
    last, best = (max(table, key=lambda row: row[name]) for name in ("top1", "best_top1"))
    with torch.no_grad():
        write_per_class(heads[table.index(last)](queries).argmax(1), truth, context)
    metrics = {
        "top1": last["top1"],
        "top5": last["top5"],
        "best_top1": best["best_top1"],
        "best_top5": best["best_top5"],
    }
    metrics = {f"cached_{key}": value for key, value in metrics.items()} if cached else metrics
    return {**metrics, "base_lr": last["base_lr"], "weight_decay": last["weight_decay"]}


def _data(config: Config, context: Context) -> Data:
    labelled = context.train.labelled
    plan = plan_of(len(labelled), config.optim.batch_size, context.seed)
    if config.features == "augmented":
        return TrainSet(context.train, context.source, list(config.views.values()), plan, labelled)
    features = extract(context.backbone, context.train, context.source, context.machine, labelled)
    return Stored(features, labels_of(context.train, context.machine.device), plan)


@torch.no_grad()
def _score(head: nn.Module, features: Tensor, truth: Tensor) -> dict[str, float]:
    """top1, and top5: the percentage of rows whose label is among the five largest logits."""
    logits = head(features)  # (n, classes)
    five = logits.topk(min(5, logits.shape[1]), dim=1).indices
    return {
        "top1": top1(logits.argmax(1), truth),
        "top5": 100 * float((five == truth[:, None]).any(1).float().mean()),
    }


def _summary(rows: list[dict[str, Any]], head: int, lr: float, weight_decay: float) -> dict[str, float]:
    """One classifier's last and best epoch."""
    best = max(rows, key=lambda row: row[f"head_{head}_top1"])
    scores = {
        f"{when}{name}": row[f"head_{head}_{name}"]
        for when, row in (("", rows[-1]), ("best_", best))
        for name in TOP
    }
    return {"base_lr": lr, "weight_decay": weight_decay, **scores, "best_epoch": best["epoch"]}


def _write(table: list[dict[str, float]], context: Context) -> None:
    with (context.out / "heads.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows({key: round(value, 8) for key, value in row.items()} for row in table)
