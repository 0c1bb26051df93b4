"""Evaluations of a finished encoder, one file each: a pydantic `Config` and `evaluate(config, context)`."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cl.knn import top1
from cl.machine import Machine
from cl.progress import Progress
from cl.shards import Reader
from cl.sources import Source

if TYPE_CHECKING:
    from torchvision.models.resnet import ResNet


@dataclass(frozen=True)
class Context:
    """What is evaluated, on which data, and where pictures and tables go.

    representations: what the encoder offers beside the backbone's features, by name ("embedding", "pixels").
    """

    backbone: "ResNet"
    representations: dict[str, nn.Module]
    train: Reader
    val: Reader
    source: Source
    seed: int
    machine: Machine
    progress: Progress
    out: Path

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
            writer.writerow([name, int(of_class.sum()), round(top1(predicted[of_class], labels[of_class]), 2)])


def labels_of(reader: Reader, device: torch.device) -> Tensor:
    """(n,) int64, of the images that have a label."""
    return torch.from_numpy(reader.labels[reader.labelled]).to(device)
