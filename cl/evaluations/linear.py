"""Linear evaluation: classifiers on the frozen backbone's pooled features."""

import csv
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from cl import optim
from cl.evaluations import Context, labels_of, write_per_class
from cl.features import extract, fingerprint
from cl.knn import top1
from cl.order import Plan
from cl.reader import TrainSet
from cl.strict import Strict
from cl.tasks import Probes, classifier
from cl.train import train
from cl.views import View


class Config(Strict):
    """One classifier for each of `base_lrs`, all trained in one pass over the backbone; `optim.base_lr` is their unit."""

    kind: Literal["linear"]
    base_lrs: list[float] = Field(min_length=1)
    optim: optim.Config
    views: dict[str, View] = Field(min_length=1, max_length=1, description="the training view")


def evaluate(config: Config, context: Context) -> dict[str, float]:
    """top1 and top5 after the last epoch of the best of the learning rates, and that rate.

    Raises:
        AssertionError: a tensor of the backbone has changed.
    """
    backbone, machine = context.backbone, context.machine
    before = fingerprint(backbone)
    torch.manual_seed(context.seed)
    heads = nn.ModuleList(classifier(backbone.fc_features, len(context.classes)) for _ in config.base_lrs).to(machine.device)
    labelled = context.train.labelled
    plan = Plan(len(labelled), config.optim.batch_size, context.seed)
    scales = [(head, lr / config.optim.base_lr) for head, lr in zip(heads, config.base_lrs, strict=True)]
    train(
        Probes(backbone, heads, machine),
        TrainSet(context.train, list(config.views.values()), plan, labelled),
        config.optim,
        optim.build(config.optim, scales),
        source=context.source,
        progress=context.progress,
    )
    assert fingerprint(backbone) == before, "linear evaluation has changed the backbone"
    features, truth = extract(backbone, context.val, context.source, machine), labels_of(context.val, machine.device)
    with torch.no_grad():
        logits = [head(features) for head in heads]  # (n, classes) each
    scores = [top1(x.argmax(1), truth) for x in logits]
    best = max(range(len(scores)), key=scores.__getitem__)
    _write_rates(config.base_lrs, scores, context)
    write_per_class(logits[best].argmax(1), truth, context)
    return {"top1": scores[best], "top5": _top5(logits[best], truth), "lr": config.base_lrs[best]}


def _top5(logits: Tensor, truth: Tensor) -> float:
    """Percentage of rows whose label is among the five largest logits."""
    five = logits.topk(min(5, logits.shape[1]), dim=1).indices
    return 100 * float((five == truth[:, None]).any(1).float().mean())


def _write_rates(rates: list[float], scores: list[float], context: Context) -> None:
    with (context.out / "rates.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["base_lr", "top1"], *zip(rates, [round(score, 2) for score in scores], strict=True)])
