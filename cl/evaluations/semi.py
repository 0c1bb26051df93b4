"""The encoder is fine-tuned, or a linear classifier trained on it, with a small part of the labels."""

import copy
import hashlib
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import nn

from cl.console.wording import counted
from cl.data.order import plan_of
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.views import SingleView
from cl.evaluations import EvaluationConfig, EvaluationContext, labels_of, write_predictions
from cl.evaluations._shared.shares import classify, share
from cl.runtime.base_config import Seeds
from cl.runtime.distributed import ranks
from cl.runtime.metric_info import BACKBONE, MetricInfo
from cl.runtime.tensor_files import fingerprint
from cl.training import optim
from cl.training.loop import train
from cl.training.tasks import Probes, SupervisedTask, Task, classifier

Training = optim.Config


class Config(EvaluationConfig):
    """Which labels to use, and how to fine-tune the encoder.

    The labels are either a `fraction` of each class, at least one, drawn with the seed; or those of a fixed
    `list` of ImageNet files `<wnid>_<number>.JPEG`, one per line, with md5 `list_md5`, available from
    `list_url`.

    backbone_lr: relative to the head's; 0: a linear probe, the backbone frozen in eval mode (Fast-MoCo, 1 %).
    from_scratch: training of an untrained network on the same labels, for the baseline `random`.
    seeds: draw and train once with each, for mean and standard deviation; null: once, with the run's seed.
    """

    kind: Literal["semi"]
    fraction: float | None = Field(gt=0, le=1)
    list: str | None
    list_md5: str | None = Field(pattern="^[0-9a-f]{32}$")
    list_url: str | None
    backbone_lr: float = Field(ge=0)
    seeds: Seeds | None
    optim: Training
    from_scratch: Training
    views: dict[str, SingleView] = Field(min_length=1, max_length=1, description="the training view")

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if (self.fraction is None) == (self.list is None):
            raise ValueError(f"fraction={self.fraction}, list={self.list}: set exactly one of them")
        return self

    def check(self, train: Reader, val: Reader) -> None:
        if self.list:
            listed(self, train)

    @property
    def title(self) -> str:
        labels = f"{100 * self.fraction:g} % of the labels" if self.fraction else None
        return labels or f"Labels of {Path(self.list or '').name}"

    def numbers(self) -> dict[str, MetricInfo]:
        part = f"{self.title}, at least one per class" if self.fraction else "a list of labels"
        trained = "fine-tuning" if self.backbone_lr else "training a linear classifier"
        meaning = f"images classified correctly after {trained} on {part}"
        scratch = f"{meaning}, from random weights"
        return {
            "top1": MetricInfo("top-1", meaning, "higher"),
            "scratch_top1": MetricInfo("top-1, trained from scratch", scratch, "higher"),
            "labels": MetricInfo("labels used", "number of training images whose labels were used"),
            "labels_percent": MetricInfo("percent of the labels", "of all labelled training images"),
        }


def evaluate(config: Config, context: EvaluationContext) -> dict[str, dict[str, float]]:
    """top1 after the last epoch, the number of labels, and scratch_top1 if the encoder is untrained."""
    labelled = context.train.labelled
    if config.fraction is None:
        chosen = listed(config, context.train)
    else:
        chosen = labelled[stratified(context.train.labels(labelled), config.fraction, context.seed)]
    keys = [context.train.keys[position].decode() for position in chosen]
    (context.out / "labels.txt").write_text("".join(f"{key}\n" for key in keys))
    val, truth = context.val, labels_of(context.val, context.machine.device)
    backbone, head = fine_tune(config, context, chosen)
    predicted, _ = classify(head, context.features(backbone, val))
    write_predictions(predicted, context)
    metrics = {
        "top1": share(predicted == truth, val, val.labelled),
        "labels": float(len(chosen)),
        "labels_percent": 100 * len(chosen) / len(labelled),
    }
    if context.encoder.untrained:
        scratch = config.model_copy(update={"backbone_lr": 1.0, "optim": config.from_scratch})
        context.progress.say("from scratch, on the same labels")
        del backbone, head  # their memory
        backbone, head = fine_tune(scratch, context, chosen, "scratch")
        predicted, _ = classify(head, context.features(backbone, val))
        metrics["scratch_top1"] = share(predicted == truth, val, val.labelled)
    return {BACKBONE: metrics}


def fine_tune(
    config: Config, context: EvaluationContext, chosen: np.ndarray, name: str = "semi"
) -> tuple[nn.Module, nn.Linear]:
    """A copy of the backbone and a classifier, trained on the training images at the positions `chosen`."""
    backbone, machine = copy.deepcopy(context.backbone), context.machine
    torch.manual_seed(context.seed)
    head = classifier(backbone.fc_features, len(context.classes)).to(machine.device)
    frozen = config.backbone_lr == 0
    settings = config.optim.model_copy(update={"batch_size": min(config.optim.batch_size, len(chosen))})
    plan = plan_of(len(chosen), settings.batch_size, context.seed)
    parts = [optim.Part(head)]
    task: Task
    if frozen:
        task = Probes(backbone, nn.ModuleList([head]), machine)
    else:
        task = SupervisedTask(backbone, head, machine, seed=context.seed, shared=plan.ranks == ranks())
        parts.append(optim.Part(backbone, config.backbone_lr))
    train(
        task,
        TrainSet(context.train, context.transform, list(config.views.values()), plan, chosen),
        settings,
        optim.build(settings, parts),
        progress=context.progress,
        checkpoints=context.checkpoints(name),
    )
    unchanged = not frozen or fingerprint(backbone) == fingerprint(context.backbone)
    assert unchanged, "semi-supervised evaluation has changed a frozen backbone"
    return backbone, head


def listed(config: Config, train: Reader) -> np.ndarray:
    """Positions of the listed images, sorted; classes that the training split lacks are ignored."""
    assert config.list
    path = Path(config.list)
    remedy = f"get it with `dvc import-url {config.list_url} {path}`" if config.list_url else "put it there"
    if not path.is_file():
        raise ValueError(f"{path} (md5 {config.list_md5}) is missing: {remedy}")
    content = path.read_bytes()
    if (found := hashlib.md5(content).hexdigest()) != config.list_md5:
        raise ValueError(f"{path} has md5 {found}, expected {config.list_md5}: remove it and {remedy}")
    names = content.decode(errors="replace").split()
    classes = set(train.manifest.classes)
    wanted: dict[bytes, str] = {}
    for name in names:
        wnid = name.split("_")[0]
        if wnid in classes:
            wanted[f"{wnid}/{name.removesuffix('.JPEG')}".encode()] = name
    chosen = [position for position, key in enumerate(train.keys) if key in wanted]
    missing = wanted.keys() - {bytes(train.keys[position]) for position in chosen}
    if missing or not chosen:
        first = min(wanted[key] for key in missing) if missing else names[0]
        count = counted(len(missing) or len(names), "images")
        raise ValueError(
            f"{config.list} names {count} missing from the training split, for example {first}: "
            "it needs dataset=imagenet or imagenet100, without images skipped by prepare "
            "(data/shards/manifest.json); otherwise choose evaluation=[semi_1,semi_10]"
        )
    return np.array(chosen)


def stratified(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Positions of a stratified sample, sorted: round(fraction * n) of each class of n, at least one."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    chosen = []
    by_class = np.argsort(labels, kind="stable")
    for positions in np.split(by_class, np.flatnonzero(np.diff(labels[by_class])) + 1):
        chosen.append(rng.permutation(positions)[: max(1, round(fraction * len(positions)))])
    return np.sort(np.concatenate(chosen))
