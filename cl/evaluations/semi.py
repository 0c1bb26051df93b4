"""Semi-supervised evaluation: the whole network is fine-tuned on a small part of the labels."""

import copy
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from cl import optim
from cl.evaluations import Context, labels_of, write_per_class
from cl.features import extract
from cl.knn import top1
from cl.reader import Plan, TrainSet
from cl.strict import Strict
from cl.tasks import Classification, classifier
from cl.train import train
from cl.views import View


class Config(Strict):
    """`fraction` of the labels of each class, at least one; `backbone_lr` is the backbone's rate relative to the head's."""

    kind: Literal["semi"]
    fraction: float = Field(gt=0, le=1)
    backbone_lr: float = Field(gt=0)
    optim: optim.Config
    views: dict[str, View] = Field(min_length=1, max_length=1, description="the training view")


def evaluate(config: Config, context: Context) -> dict[str, float]:
    """top1 after the last epoch, and the number of labels used; the encoder itself is left as it was."""
    labelled = context.train.labelled
    chosen = labelled[choose(context.train.labels[labelled], config.fraction, context.seed)]
    backbone = copy.deepcopy(context.backbone)
    torch.manual_seed(context.seed)
    head = classifier(backbone.fc_features, len(context.classes)).to(context.machine.device)
    task = Classification(backbone, head, context.machine)
    settings = config.optim.model_copy(update={"batch_size": min(config.optim.batch_size, len(chosen))})
    train(
        task,
        TrainSet(context.train, list(config.views.values()), Plan(len(chosen), settings.batch_size, context.seed), chosen),
        settings,
        optim.build(settings, [(head, 1.0), (backbone, config.backbone_lr)]),
        source=context.source,
        progress=context.progress,
    )
    truth = labels_of(context.val, context.machine.device)
    with torch.no_grad():
        predicted = head(extract(backbone, context.val, context.source, context.machine)).argmax(1)
    write_per_class(predicted, truth, context)
    (context.out / "labels.txt").write_text("".join(context.train.index["key"][p].decode() + "\n" for p in chosen))
    return {"top1": top1(predicted, truth), "labels": len(chosen)}


def choose(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Positions of a stratified part of the labels, sorted: round(fraction * n) of each class of n, at least one."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    chosen = []
    for label in np.unique(labels):
        positions = np.flatnonzero(labels == label)
        chosen.append(rng.permutation(positions)[: max(1, round(fraction * len(positions)))])
    return np.sort(np.concatenate(chosen))
