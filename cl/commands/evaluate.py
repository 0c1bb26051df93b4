"""evaluate: how well an encoder's features separate labelled images."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cl.commands.defaults import ENCODER
from cl.commands.embed import embed
from cl.commands.inputs import labelled
from cl.commands.inputs.labels import opened_table
from cl.commands.inputs.paths import File, Inputs
from cl.commands.outputs.tables import target_of
from cl.console.command import progress
from cl.encoders.encoder import Encoder, opened
from cl.features.extraction import PIXELS, Pixels
from cl.features.scores import checked, knn_correct, linear_correct
from cl.networks.batch_norm import is_untrained
from cl.runtime.tables import columns_of, write_table
from cl.statistics import independent, interval


class _WithPixels(Encoder):
    """Gives an image's pixels after its features, so that the image is decoded once."""

    @classmethod
    def of(cls, encoder: Encoder, resize: int | None, crop: int | None) -> Encoder:
        """A copy of an encoder, with the same weights and mode."""
        both = copy.copy(encoder)
        both.__class__ = cls
        both.set_size(resize, crop)
        both.width += 3 * min(both.transform.crop, PIXELS) ** 2
        return both

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, S, S) to (N, D + 3 s s)."""
        return torch.cat([super().forward(images), Pixels()(images)], 1)


class Accuracy(NamedTuple):
    """A measure in percent, and its 95 % interval for other validation images; one group gives none."""

    measure: str
    percent: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Evaluation:
    """Percentages of the validation images whose class is found.

    knn: the k nearest training images vote.
    linear: logistic regression.
    pixels: kNN on the pixels instead of features, as in `cl.features.extraction.Pixels`.
    majority: every image gets the most frequent class of the training images.
    independent: how many independent images each of these four counts; 0 if all are of one group.
    """

    knn: float
    linear: float
    pixels: float
    majority: float
    k: int
    train_images: int
    val_images: int
    classes: int
    independent: tuple[float, ...]

    def rows(self) -> Iterator[Accuracy]:
        """Every measure."""
        measures = {
            f"kNN, k = {self.k}": self.knn,
            "logistic regression": self.linear,
            "kNN, raw pixels": self.pixels,
            "most frequent class": self.majority,
        }
        for (measure, percent), images in zip(measures.items(), self.independent, strict=True):
            yield Accuracy(measure, percent, *(interval(percent, images) or (None, None)))


def evaluate(
    encoder: File | Encoder = ENCODER,
    *,
    train: Inputs,
    val: Inputs | None = None,
    labels: File | None = None,
    columns: Mapping[str, str] | None = None,
    separator: str | None = None,
    holdout: float = 0.2,
    ungrouped: bool = False,
    k: int = 20,
    to: File | None = None,
    prefix: str | None = None,
    resize: int | None = None,
    crop: int | None = None,
) -> Evaluation:
    """Accuracy of nearest neighbours and of logistic regression on the features of a frozen encoder.

    Features are those of `embed`: one view per image, without augmentation. kNN: the k nearest training
    images by cosine vote with weight exp(cosine / 0.07) (Wu et al. 2018, section 3.4). Linear: multinomial
    logistic regression by L-BFGS on standardised features, C = 1. Validation images of a group or burst, and
    equal files, count together in the intervals.

    Args:
        encoder: a file or name that `cl.load` takes, or what it returned.
        train: as `images` of `embed`. The class is the column label of a table, or else the folder below a
            given folder, or else the folder that contains the image. Images without a class are left out.
        val: the same; None: a share of the training images, chosen by a hash of their names or groups;
            groups, bursts and copies are held out together.
        labels: a table with the columns path, label and optionally group, instead of folders.
        columns, separator: as in `classify`, of that table.
        holdout: the share of the training images if `val` is None.
        ungrouped: each image stands alone. Otherwise bursts (`cl.features.series`) are groups, if there are
            no others.
        k: number of neighbours.
        to: a .csv or .parquet file to write, with the fields of `Accuracy` as columns.
        prefix, resize, crop: as in `embed`.

    Raises:
        ValueError: see `embed`; or a split has no labelled image, there is one class only, or there are fewer
            than k training images.
    """
    target = target_of(to, encoder, train, val, labels)
    loaded, say = opened(encoder, prefix), progress("evaluate").say
    if is_untrained(loaded.network):
        say("warning: the encoder was never trained: every bias of its normalisation layers is 0")
    both = _WithPixels.of(loaded, resize, crop)
    table = opened_table(labels, columns, separator)
    bank, queries, copies = labelled.read(
        train,
        val,
        partial(embed, encoder=both),
        by_encoder=lambda rows: [rows[:, : loaded.width]],
        labels=table,
        holdout=holdout,
        ungrouped=ungrouped,
        say=say,
    )
    if copies:
        say(f"left out validation images that are also training images: {copies}")
    parts = (np.split(images.features, [loaded.width], axis=1) for images in (bank, queries))
    rows, pixels = (
        checked(known, bank.labels, asked, queries.labels) for known, asked in zip(*parts, strict=True)
    )
    classes, counts = np.unique(bank.labels, return_counts=True)
    correct = knn_correct(*rows, k=k), linear_correct(*rows), knn_correct(*pixels, k=k)
    right = [each.numpy().astype(float) for each in correct]
    right.append((queries.labels == classes[counts.argmax()]).astype(float))
    knn, linear, raw, majority = (100 * float(each.mean()) for each in right)
    evaluation = Evaluation(
        knn=knn,
        linear=linear,
        pixels=raw,
        majority=majority,
        k=k,
        train_images=len(bank),
        val_images=len(queries),
        classes=len({*classes, *queries.labels}),
        independent=tuple(independent(each, queries.together) for each in right),
    )
    if target:
        write_table(target, columns_of(Accuracy, [*evaluation.rows()]))
    return evaluation
