"""Evaluations of a frozen encoder, one file each: a pydantic `Config` and `evaluate(config, context)`.

`evaluate` returns the metrics of each representation: of the "backbone", and perhaps of heads and others. A
percentage of images is a `cl.evaluations._shared.shares.share`, which the report gives an interval.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.data.transform import Transform
from cl.evaluations._shared.pictures import Captioned, write_rows
from cl.features.extraction import Unit
from cl.runtime.base_config import BaseConfig
from cl.runtime.machine import Machine
from cl.runtime.metric_info import BACKBONE, MetricInfo
from cl.training.checkpoints import Checkpoints

if TYPE_CHECKING:
    from cl.networks.backbones import Backbone

WORST_CLASSES, EXAMPLES = 5, 8


class MeasurementConfig(BaseConfig):
    """The parameters that every evaluation and every analysis has.

    needs_labels: whether it is left out where the data has no labels.
    """

    needs_labels: ClassVar[bool]
    kind: str

    def check(self, train: Reader, val: Reader) -> None:
        """Compare the parameters with the images and labels of the data.

        Raises:
            ValueError: there are too few.
        """


class EvaluationConfig(MeasurementConfig):
    """The parameters that every evaluation has; it needs labels unless it says otherwise."""

    needs_labels: ClassVar[bool] = True

    def check_backbone(self, network: nn.Module) -> None:
        """Compare the parameters with the backbone, on any device.

        Raises:
            ValueError: it lacks what the evaluation takes from it.
        """

    def numbers(self) -> dict[str, MetricInfo]:
        """What each metric means, whatever representation it is of."""
        return {}


@dataclass(frozen=True)
class Encoder:
    """What is evaluated.

    heads: modules applied to the backbone's features, by name ("embedding").
    representations: alternatives to the backbone that take images, by name ("pixels").
    untrained: the backbone has its initial weights.
    """

    backbone: "Backbone"
    heads: dict[str, nn.Module] = field(default_factory=dict)
    representations: dict[str, nn.Module] = field(default_factory=dict)
    untrained: bool = False

    @property
    def modules(self) -> list[nn.Module]:
        return [self.backbone, *self.heads.values(), *self.representations.values()]

    def passes(self) -> list[tuple[list[str], Unit]]:
        """The backbone with its heads, and each representation: the names of the outputs, and the module."""
        together = [BACKBONE, *self.heads], Unit(self.backbone, list(self.heads.values()))
        return [together, *(([name], Unit(module, [])) for name, module in self.representations.items())]


@dataclass(frozen=True)
class Context:
    """An encoder, the data to evaluate it on, and the folder for pictures and tables.

    checkpoints: where the training of a given name saves its state.
    """

    encoder: Encoder
    train: Reader
    val: Reader
    transform: Transform
    seed: int
    machine: Machine
    progress: Progress
    out: Path
    checkpoints: Callable[[str], Checkpoints]

    @property
    def backbone(self) -> "Backbone":
        return self.encoder.backbone

    @property
    def classes(self) -> list[str]:
        return self.train.manifest.classes


def write_predictions(predicted: Tensor, labels: Tensor, context: Context) -> None:
    """Write the predicted classes (n,) of the labelled validation images.

    `classes.csv` has the number of images and top-1 (percent) per class, `predictions.csv` a line per image;
    `worst/` has pictures of the classes with the lowest top-1.
    """
    _write_per_class(predicted, labels, context)
    pairs = list(zip(predicted.tolist(), labels.tolist(), strict=True))
    keys = [context.val.keys[position].decode() for position in context.val.labelled]
    with (context.out / "predictions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "truth", "predicted"])
        for key, (taken_for, truth) in zip(keys, pairs, strict=True):
            writer.writerow([key, context.classes[truth], context.classes[taken_for]])
    write_rows(context.out / "worst", _worst(predicted.cpu(), labels.cpu(), context))


def _worst(predicted: Tensor, labels: Tensor, context: Context) -> Iterator[tuple[str, list[Captioned]]]:
    """The first mistakes of each of the classes with the lowest top-1, lowest first."""
    wrong = predicted != labels
    images, right = _per_class(predicted, labels, len(context.classes))
    present = images.nonzero()[:, 0].tolist()
    for number in sorted(present, key=lambda number: float(right[number] / images[number]))[:WORST_CLASSES]:
        mistakes = (wrong & (labels == number)).nonzero()[:EXAMPLES, 0].tolist()
        if mistakes:
            title = (
                f"{context.classes[number]}: {100 * float(1 - right[number] / images[number]):.0f} % wrong"
            )
            yield title, [_taken_for(row, predicted, context) for row in mistakes]


def _per_class(predicted: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """(classes,) each: the images of every class, and how many of them are predicted right."""
    return labels.bincount(minlength=classes), labels[predicted == labels].bincount(minlength=classes)


def _taken_for(row: int, predicted: Tensor, context: Context) -> Captioned:
    pixels = context.val.pixels(int(context.val.labelled[row]))
    return Captioned(pixels, context.classes[int(predicted[row])])


def _write_per_class(predicted: Tensor, labels: Tensor, context: Context) -> None:
    with (context.out / "classes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["class", "images", "top1"])
        counts = _per_class(predicted, labels, len(context.classes))
        for name, images, right in zip(context.classes, *(x.tolist() for x in counts), strict=True):
            writer.writerow([name, images, round(100 * right / images, 2) if images else ""])


def labels_of(reader: Reader, device: torch.device, most: int | None = None) -> Tensor:
    """(n,) int64: the labels of the labelled images, or of the first of them, in the order of the index."""
    return torch.from_numpy(reader.labels(reader.labelled[:most])).to(device)
