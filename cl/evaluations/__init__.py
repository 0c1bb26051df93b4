"""Evaluations of a finished encoder, one file each: a pydantic `Config` and `evaluate(config, context)`."""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cl.console.progress import Progress
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.features.knn import top1
from cl.runtime.distributed import rank, ranks
from cl.runtime.machine import Machine
from cl.sources import Source
from cl.training.checkpoints import Checkpoints

if TYPE_CHECKING:
    from torchvision.models.resnet import ResNet


@dataclass(frozen=True)
class Context:
    """What is evaluated, on which data, and where pictures and tables go.

    heads: what stands behind the backbone, by name ("embedding").
    representations: what takes images itself, by name ("pixels").
    untrained: nothing has trained the backbone yet.
    checkpoints: where a training of this name saves itself.
    """

    backbone: "ResNet"
    heads: dict[str, nn.Module]
    representations: dict[str, nn.Module]
    untrained: bool
    train: Reader
    val: Reader
    source: Source
    seed: int
    machine: Machine
    progress: Progress
    out: Path
    checkpoints: Callable[[str], Checkpoints]

    @property
    def classes(self) -> list[str]:
        return self.train.manifest.classes


def write_per_class(predicted: Tensor, labels: Tensor, context: Context) -> None:
    """`classes.csv`: images and top-1 in percent of each class."""
    with (context.out / "classes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["class", "images", "top1"])
        for number, name in enumerate(context.classes):
            of_class = labels == number
            writer.writerow(
                [name, int(of_class.sum()), round(top1(predicted[of_class], labels[of_class]), 2)]
            )


def labels_of(reader: Reader, device: torch.device) -> Tensor:
    """(n,) int64, of the images that have a label."""
    return torch.from_numpy(reader.labels[reader.labelled]).to(device)


def plan_of(samples: int, batch_size: int, seed: int) -> Plan:
    """Batches that the ranks of a run share; if a batch cannot be divided among them, each takes the whole of it."""
    shared = batch_size % ranks() == 0
    return Plan(samples, batch_size, seed, rank() if shared else 0, ranks() if shared else 1)
