"""Evaluations of a frozen encoder, one file each: a pydantic `Config` and `evaluate(config, context)`.

`evaluate` returns metrics by representation: the "backbone", and in some evaluations heads and others.
A percentage of images is a `cl.evaluations._shared.shares.share`, from which the report computes an interval.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.data.transform import Transform
from cl.data.views import centre
from cl.features.extraction import Unit, extract
from cl.runtime.base_config import BaseConfig
from cl.runtime.machine import Machine
from cl.runtime.metric_info import BACKBONE, MetricInfo
from cl.runtime.tables import write_csv
from cl.training.checkpoints import Checkpoints

if TYPE_CHECKING:
    from cl.networks.backbones import Backbone

WORST_CLASSES, EXAMPLES = 5, 8
SIDE, QUALITY = 96, 90  # of pictures: pixels, and JPEG's quality


class MeasurementConfig(BaseConfig):
    """Parameters common to evaluations and analyses.

    needs_labels: whether to skip it on data without labels.
    needs_values: whether to skip it on data without a column `positive` or `within`.
    """

    needs_labels: ClassVar[bool]
    needs_values: ClassVar[bool] = False
    kind: str

    def check(self, train: Reader, val: Reader) -> None:
        """Raises ValueError if the data has too few images or labels."""

    def for_few_images(self, train: Reader, val: Reader) -> Self:
        """The same parameters, reduced to what few images allow."""
        return self

    def numbers(self) -> dict[str, MetricInfo]:
        """The description of each metric, the same for all representations."""
        return {}


class EvaluationConfig(MeasurementConfig):
    """Parameters common to evaluations."""

    needs_labels: ClassVar[bool] = True
    name: ClassVar[str] = ""  # in words

    @property
    def title(self) -> str:
        """What it is called in reports."""
        return self.name or self.kind.replace("_", " ").capitalize()

    def check_backbone(self, network: nn.Module) -> None:
        """Raises ValueError if the backbone, on any device, lacks the layers that the evaluation reads."""


class Captioned(NamedTuple):
    """An image (H, W, 3) with its caption; `mark`: whether the caption is the true class."""

    pixels: np.ndarray
    caption: str
    mark: Literal["", "right", "wrong"] = ""


@dataclass(frozen=True)
class EvaluatedEncoder:
    """An encoder to evaluate.

    heads: modules applied to the backbone's features, by name ("embedding").
    representations: modules applied to images instead of the backbone, by name ("pixels").
    untrained: whether the backbone has its initial weights.
    """

    backbone: "Backbone"
    heads: dict[str, nn.Module] = field(default_factory=dict)
    representations: dict[str, nn.Module] = field(default_factory=dict)
    untrained: bool = False

    def passes(self) -> list[tuple[list[str], Unit]]:
        """The modules to run over the images, each with the names of its outputs."""
        with_heads = [BACKBONE, *self.heads], Unit(self.backbone, list(self.heads.values()))
        return [with_heads, *(([name], Unit(module, [])) for name, module in self.representations.items())]


@dataclass(frozen=True)
class MeasurementContext:
    """What evaluations and analyses measure with; `out` is the folder for charts, pictures and tables."""

    train: Reader
    val: Reader
    transform: Transform
    seed: int
    machine: Machine
    progress: Progress
    out: Path


@dataclass(frozen=True)
class EvaluationContext(MeasurementContext):
    """An encoder and what to evaluate it with.

    checkpoints: the checkpoints of the training with a given name.
    """

    encoder: EvaluatedEncoder
    checkpoints: Callable[[str], Checkpoints]

    @property
    def backbone(self) -> "Backbone":
        return self.encoder.backbone

    @property
    def classes(self) -> list[str]:
        return self.train.manifest.classes

    def features(self, network: nn.Module, reader: Reader) -> Tensor:
        """The network's features (n, D) of the labelled images."""
        images = EvalSet(reader, self.transform, reader.labelled)
        return extract(network, images, self.machine, self.progress.count)


def write_predictions(
    predicted: Tensor, context: EvaluationContext, others: Mapping[str, Tensor] = {}
) -> None:
    """Write the predicted classes (n,) of the labelled validation images.

    classes.csv: number of images and top-1 (percent) of each class.
    predictions.csv: true and predicted class of each image, those predicted (n,) from other representations
        by name, and its group if images have groups.
    worst/: pictures of the classes with the lowest top-1.
    """
    predicted, labels = predicted.cpu(), labels_of(context.val, torch.device("cpu"))
    classes = context.classes
    images = labels.bincount(minlength=len(classes))  # (classes,)
    right = labels[predicted == labels].bincount(minlength=len(classes))  # (classes,)
    counts = list(zip(images.tolist(), right.tolist(), strict=True))
    top1 = [round(100 * correct / total, 2) if total else "" for total, correct in counts]
    rows = zip(classes, images.tolist(), top1, strict=True)
    write_csv(context.out / "classes.csv", ["class", "images", "top1"], rows)
    columns = {"truth": labels, "predicted": predicted, **others}
    named = {name: [classes[number] for number in column.tolist()] for name, column in columns.items()}
    write_images(context.out / "predictions.csv", context.val, context.val.labelled, named)
    write_pictures(context.out / "worst", _worst(predicted, labels, right / images, context))


def write_images(
    path: Path, reader: Reader, positions: np.ndarray, columns: Mapping[str, Sequence[object]]
) -> None:
    """Write a row for each image at `positions` (n,): key, `columns` (n values each), and group if any."""
    keys = [reader.keys[position].decode() for position in positions]
    table = {"image": keys, **columns}
    if reader.groups is not None:
        table["group"] = ["" if group < 0 else group for group in reader.groups[positions].tolist()]
    write_csv(path, list(table), zip(*table.values(), strict=True))


def _worst(
    predicted: Tensor, labels: Tensor, accuracy: Tensor, context: EvaluationContext
) -> Iterator[tuple[str, list[Captioned]]]:
    """The first mistakes in each of the classes with the lowest accuracy (classes,), lowest first."""
    val = context.val
    present = (~accuracy.isnan()).nonzero()[:, 0].tolist()
    for number in sorted(present, key=accuracy.tolist().__getitem__)[:WORST_CLASSES]:
        mistakes = ((predicted != labels) & (labels == number)).nonzero()[:EXAMPLES, 0].tolist()
        if mistakes:
            title = f"{context.classes[number]}: {100 * float(1 - accuracy[number]):.0f} % wrong"
            guesses = [context.classes[int(predicted[row])] for row in mistakes]
            files = [val.pixels(int(val.labelled[row])) for row in mistakes]
            pixels = map(context.transform.picture, files)
            yield title, [Captioned(*pair) for pair in zip(pixels, guesses, strict=True)]


def write_pictures(folder: Path, rows: Iterable[tuple[str, list[Captioned]]]) -> None:
    """Write titled rows of pictures to `folder`, and the list of them to `pictures.csv`."""
    folder.mkdir(exist_ok=True)
    listed = []
    for y, (title, pictures) in enumerate(rows):
        for x, picture in enumerate(pictures):
            name = f"{y}-{x}.jpg"
            Image.fromarray(centre(picture.pixels, SIDE, SIDE)).save(folder / name, quality=QUALITY)
            listed.append([y, title, name, picture.caption, picture.mark])
    write_csv(folder / "pictures.csv", ["row", "title", "file", "caption", "mark"], listed)


def labels_of(reader: Reader, device: torch.device, most: int | None = None) -> Tensor:
    """(n,) int64: the labels of the labelled images, or of `most` as in `Reader.evaluated`."""
    return torch.from_numpy(reader.labels(reader.evaluated(most))).to(device)
