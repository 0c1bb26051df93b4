"""Linear evaluation: classifiers on the frozen backbone's features."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from cl.data.order import Plan, plan_of, reduced
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.views import SingleView
from cl.evaluations import EvaluationConfig, EvaluationContext, labels_of, write_predictions
from cl.evaluations._shared.layers import POOLED, LastBlocks, PooledMaps
from cl.evaluations._shared.shares import classify, share
from cl.features.knn import top1
from cl.networks.batch_norm import set_groups
from cl.objective.batch import Batch
from cl.runtime.base_config import Seeds
from cl.runtime.machine import Machine, to_device
from cl.runtime.metric_info import BACKBONE, MetricInfo, Share
from cl.runtime.tables import write_csv
from cl.runtime.tensor_files import fingerprint
from cl.training import optim
from cl.training.loop import Data, train
from cl.training.tasks import Probes, classifier

if TYPE_CHECKING:
    from cl.networks.backbones import Backbone

    Reads = Backbone | LastBlocks | PooledMaps

TOP = ("top1", "top5")


class Config(EvaluationConfig):
    """One classifier for each pair of `base_lrs` and `weight_decays`, trained in one pass over the backbone.

    An empty list means the value in `optim`; a non-empty list must include that value.

    features: `augmented`: of the training view, as in the papers; `cached`: of the evaluation view, extracted
        once. Caching is faster but a different protocol, so its metrics have different names.
    blocks: use the class tokens after this many last blocks of a transformer as features (DINO: 4 of ViT-S);
        null: the backbone's own features.
    maps: instead, a classifier of each of a ResNet's five maps, after the first ReLU and after each stage,
        pooled and standardised (OpenSelfSup's "Multi"). The best map counts.
    seeds: train once with each, for mean and standard deviation; null: once, with the run's seed.
    """

    name: ClassVar = "Linear classifier"
    kind: Literal["linear"]
    features: Literal["augmented", "cached"]
    blocks: int | None = Field(None, gt=0)
    maps: bool = False
    base_lrs: list[Annotated[float, Field(gt=0)]]
    weight_decays: list[Annotated[float, Field(ge=0)]]
    seeds: Seeds | None
    optim: optim.Config
    views: dict[str, SingleView] = Field(max_length=1, description="the training view, if features=augmented")

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if bool(self.views) != (self.features == "augmented"):
            raise ValueError(
                f"views={list(self.views)} with features={self.features}: augmented takes one, cached none"
            )
        if self.weight_decays and self.optim.final_weight_decay is not None:
            raise ValueError(
                f"final_weight_decay={self.optim.final_weight_decay} with several weight_decays; set null"
            )
        if self.maps and self.blocks:
            raise ValueError(f"maps=true with blocks={self.blocks}: choose one of them")
        if self.optim.clip and (count := len(self.settings)) > 1:
            raise ValueError(f"clip={self.optim.clip} would clip {count} classifiers together; set null")
        for name, values, usual in (
            ("base_lr", self.base_lrs, self.optim.base_lr),
            ("weight_decay", self.weight_decays, self.optim.weight_decay),
        ):
            if values and usual not in values:
                raise ValueError(f"{name}s={values} must include optim.{name}={usual}")
        return self

    def check_backbone(self, network: nn.Module) -> None:
        if self.blocks:
            LastBlocks(network, self.blocks)

    def reader(self, network: "Backbone") -> "Reads":
        """The network with the features that are classified."""
        if self.blocks:
            return LastBlocks(network, self.blocks)
        return PooledMaps(network) if self.maps else network

    def check(self, train: Reader, val: Reader) -> None:
        plan_of(len(train.labelled), self.optim.batch_size, seed=0)

    def for_few_images(self, train: Reader, val: Reader) -> Self:
        size = reduced(self.optim.batch_size, len(train.labelled))
        return self.model_copy(update={"optim": self.optim.model_copy(update={"batch_size": size})})

    def numbers(self) -> dict[str, MetricInfo]:
        prefix, source = ("cached_", ", stored features") if self.features == "cached" else ("", "")
        chosen = "of the best classifier, chosen on these images"
        infos = {
            "base_lr": MetricInfo("base learning rate", chosen),
            "weight_decay": MetricInfo("weight decay", chosen),
            "map": MetricInfo("map", f"from 1, {chosen}"),
        }
        of_last = "best classifier, last epoch"
        of_best = "best classifier and epoch: optimistic, as these images chose them"
        for name, title, meaning in (
            ("top1", f"top-1{source}", "images whose class is ranked first"),
            ("top5", f"top-5{source}", "images whose class is among the first five"),
        ):
            infos[f"{prefix}{name}"] = MetricInfo(title, f"{meaning}; {of_last}", "higher")
            best = MetricInfo(f"{title}, best epoch", f"{meaning}; {of_best}", "higher")
            infos[f"{prefix}best_{name}"] = best
        return infos

    @property
    def settings(self) -> list[dict[str, float]]:
        """Base learning rate, weight decay and map, if `maps`, of each classifier."""
        base_lrs = self.base_lrs or [self.optim.base_lr]
        weight_decays = self.weight_decays or [self.optim.weight_decay]
        pairs = [{"base_lr": lr, "weight_decay": decay} for lr, decay in product(base_lrs, weight_decays)]
        if not self.maps:
            return pairs
        return [pair | {"map": number} for number in range(1, len(POOLED) + 1) for pair in pairs]


@dataclass
class Stored:
    """Features (n, D) and labels (n,) on the device, with the interface of `cl.training.loop.Data`."""

    features: Tensor
    labels: Tensor
    plan: Plan

    def batches(self, start: int, stop: int, workers: int) -> Iterator[Batch]:
        """Batches of steps start to stop - 1."""
        for step in range(start, stop):
            rows = to_device(torch.from_numpy(self.plan.step(step)[1]), self.features.device)
            yield Batch([self.features[rows]], self.labels[rows], positions=rows)

    def inputs(self, here: Machine) -> Callable[[Batch], Batch]:
        """The identity: batches are already on the device."""
        return lambda batch: batch


def evaluate(config: Config, context: EvaluationContext) -> dict[str, dict[str, float]]:
    """top1 and top5 of the best classifier in the last epoch; best_top1 and best_top5 over all epochs.

    Five classes or fewer have no top5.

    The validation images choose the classifier and the epoch, as in the papers. `heads.csv` lists all
    classifiers with their training losses.
    """
    backbone = config.reader(context.backbone)
    before = fingerprint(backbone)
    truth = labels_of(context.val, context.machine.device)
    queries = context.features(backbone, context.val)
    torch.manual_seed(context.seed)
    heads = _heads(config, backbone, len(context.classes)).to(context.machine.device)
    rows = _train(config, backbone, context, heads, lambda _: _scores(heads, queries, truth))
    assert fingerprint(backbone) == before, "linear evaluation has changed the backbone"
    table = [setting | _summary(rows, number) for number, setting in enumerate(config.settings)]
    rounded = ([round(value, 8) for value in row.values()] for row in table)
    write_csv(context.out / "heads.csv", table[0], rounded)
    last = max(table, key=lambda row: row["top1"])
    best = max(table, key=lambda row: row["best_top1"])
    predicted, five = classify(heads[table.index(last)], queries)
    write_predictions(predicted, context)
    prefix = "cached_" if config.features == "cached" else ""
    right = {"top1": predicted == truth, "top5": (five == truth[:, None]).any(1)}
    shown = TOP if len(context.classes) > five.shape[1] else TOP[:1]  # of five, any answer is right
    images = {name: share(right[name], context.val, context.val.labelled).images for name in shown}
    metrics: dict[str, float] = {f"{prefix}{name}": Share(last[name], images[name]) for name in shown}
    metrics |= {f"{prefix}best_{name}": Share(best[f"best_{name}"], images[name]) for name in shown}
    metrics |= {name: last[name] for name in config.settings[0]}
    return {BACKBONE: metrics}


def _heads(config: Config, backbone: "Reads", classes: int) -> nn.ModuleList:
    """A classifier for each setting; those of one map are equal at first."""
    if isinstance(backbone, PooledMaps):
        firsts = backbone.classifiers(classes)
    else:
        firsts = [classifier(backbone.fc_features, classes)]
    number = len(config.settings) // len(firsts)
    heads = nn.ModuleList(copy.deepcopy(first) for first in firsts for _ in range(number))
    set_groups(heads, 1)
    return heads


def _train(
    config: Config,
    backbone: "Reads",
    context: EvaluationContext,
    heads: nn.ModuleList,
    each_epoch: Callable[[int], dict[str, float]],
) -> list[dict[str, Any]]:
    """Train a head for each setting of the grid; return the log, a row per epoch."""
    parts = []
    for head, setting in zip(heads, config.settings, strict=True):
        decay = setting["weight_decay"] if config.weight_decays else None
        parts.append(optim.Part(head, setting["base_lr"] / config.optim.base_lr, decay))
    labelled, is_cached = context.train.labelled, config.features == "cached"
    plan = plan_of(len(labelled), config.optim.batch_size, context.seed)
    data: Data
    if is_cached:
        labels = labels_of(context.train, context.machine.device)
        data = Stored(context.features(backbone, context.train), labels, plan)
    else:
        data = TrainSet(context.train, context.transform, list(config.views.values()), plan, labelled)
    task = Probes(None if is_cached else backbone, heads, context.machine)
    if len(config.base_lrs) > 1:
        task.remedy = f"One of {len(heads)} classifiers diverged: remove {max(config.base_lrs)} from base_lrs"
    return train(
        task,
        data,
        config.optim,
        optim.build(config.optim, parts),
        progress=context.progress,
        checkpoints=context.checkpoints("linear"),
        each_epoch=each_epoch,
    )


def _scores(heads: nn.ModuleList, features: Tensor, truth: Tensor) -> dict[str, float]:
    """`head_<number>_top1` and `_top5` of every head, in percent, and the best top1.

    top5: the label has one of the five largest logits.
    """
    row = {}
    for number, head in enumerate(heads):
        predicted, five = classify(head, features)
        row[f"head_{number}_top1"] = top1(predicted, truth)
        row[f"head_{number}_top5"] = 100 * float((five == truth[:, None]).any(1).float().mean())
    return {"top1": max(row[f"head_{number}_top1"] for number in range(len(heads))), **row}


def _summary(rows: list[dict[str, Any]], head: int) -> dict[str, float]:
    """One classifier: metrics in its last and best epoch, and last training loss."""
    last = rows[-1]
    best = max(rows, key=lambda row: row[f"head_{head}_top1"])
    return {
        **{name: last[f"head_{head}_{name}"] for name in TOP},
        **{f"best_{name}": best[f"head_{head}_{name}"] for name in TOP},
        "best_epoch": best["epoch"],
        "loss": last[f"head_{head}_loss"],
    }
