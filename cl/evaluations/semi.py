"""Semi-supervised evaluation: a classifier, and with it the backbone or not, is trained on a small part of the labels."""

import copy
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn

from cl import optim
from cl.evaluations import Context, labels_of, write_per_class
from cl.features import extract, fingerprint
from cl.knn import top1
from cl.order import Plan
from cl.reader import TrainSet
from cl.strict import Strict
from cl.tasks import Classification, Probes, classifier
from cl.train import train
from cl.views import View


class Config(Strict):
    """`fraction` of the labels of each class, at least one; `backbone_lr` is the backbone's rate relative to the head's.

    With `backbone_lr` 0 the backbone is frozen in eval mode, batch statistics included: a linear probe (Fast-MoCo, 1 %).
    """

    kind: Literal["semi"]
    fraction: float = Field(gt=0, le=1)
    backbone_lr: float = Field(ge=0)
    optim: optim.Config
    views: dict[str, View] = Field(min_length=1, max_length=1, description="the training view")


def evaluate(config: Config, context: Context) -> dict[str, float]:
    """top1 after the last epoch, and the number of labels used; the encoder itself is left as it was."""
    labelled = context.train.labelled
    chosen = labelled[choose(context.train.labels[labelled], config.fraction, context.seed)]
    backbone, head = fine_tune(config, context, chosen)
    truth = labels_of(context.val, context.machine.device)
    with torch.no_grad():
        predicted = head(extract(backbone, context.val, context.source, context.machine)).argmax(1)
    write_per_class(predicted, truth, context)
    (context.out / "labels.txt").write_text("".join(context.train.keys[p].decode() + "\n" for p in chosen))
    return {"top1": top1(predicted, truth), "labels": len(chosen)}


def fine_tune(config: Config, context: Context, chosen: np.ndarray) -> tuple[nn.Module, nn.Linear]:
    """A copy of the backbone and its classifier, trained on the `chosen` positions of the training images.

    Raises:
        AssertionError: a tensor of a frozen backbone has changed.
    """
    backbone, machine = copy.deepcopy(context.backbone), context.machine
    torch.manual_seed(context.seed)
    head = classifier(backbone.fc_features, len(context.classes)).to(machine.device)
    frozen = config.backbone_lr == 0
    settings = config.optim.model_copy(update={"batch_size": min(config.optim.batch_size, len(chosen))})
    train(
        Probes(backbone, nn.ModuleList([head]), machine) if frozen else Classification(backbone, head, machine),
        TrainSet(context.train, list(config.views.values()), Plan(len(chosen), settings.batch_size, context.seed), chosen),
        settings,
        optim.build(settings, [(head, 1.0)] if frozen else [(head, 1.0), (backbone, config.backbone_lr)]),
        source=context.source,
        progress=context.progress,
    )
    unchanged = not frozen or fingerprint(backbone) == fingerprint(context.backbone)
    assert unchanged, "semi-supervised evaluation has changed a frozen backbone"
    return backbone, head


def choose(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Positions of a stratified part of the labels, sorted: round(fraction * n) of each class of n, at least one."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    chosen = []
    for label in np.unique(labels):
        positions = np.flatnonzero(labels == label)
        chosen.append(rng.permutation(positions)[: max(1, round(fraction * len(positions)))])
    return np.sort(np.concatenate(chosen))
