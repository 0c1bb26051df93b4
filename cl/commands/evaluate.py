"""evaluate: how well an encoder's features separate labelled images."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cl.commands import ENCODER, prefix_option, size_options
from cl.commands.embed import embed
from cl.console.command import entry_point, progress
from cl.console.wording import counted

if TYPE_CHECKING:
    from numpy import ndarray

    from cl.hub.encoder import Encoder
    from cl.report.intervals import Interval

Paths = "str | PathLike[str] | Sequence[str | PathLike[str]]"


@dataclass(frozen=True)
class Evaluation:
    """Percentages of validation images whose class is found, with their 95 % intervals over these images.

    knn: the nearest training images vote.
    linear: logistic regression on the features.
    majority: all images get the most frequent class of the training images.
    """

    knn: float
    linear: float
    majority: float
    train_images: int
    val_images: int
    classes: int

    def interval(self, percent: float) -> "Interval | None":
        """Wilson's 95 % interval of one of the percentages."""
        from cl.report.intervals import interval

        return interval(percent, self.val_images)


def evaluate(
    encoder: "str | PathLike[str] | Encoder" = ENCODER,
    *,
    train: "str | PathLike[str] | Sequence[str | PathLike[str]]",
    val: "str | PathLike[str] | Sequence[str | PathLike[str]] | None" = None,
    labels: "str | PathLike[str] | None" = None,
    holdout: float = 0.2,
    k: int = 20,
    prefix: str | None = None,
    resize: int | None = None,
    crop: int | None = None,
) -> Evaluation:
    """Accuracy of nearest neighbours and of logistic regression on frozen features.

    Features are those of `embed`: one view per image, without augmentation. kNN: the k nearest training images
    vote with weight exp(cosine / 0.07) (Wu et al. 2018, section 3.4). Linear: multinomial logistic regression by
    L-BFGS on standardised features, C = 1. These are not the protocols of papers; see docs/evaluation.md.

    Args:
        encoder: a file or name that `cl.load` takes, or what it returned.
        train: folders of class folders, .csv or .parquet tables with columns path and label, or other inputs of
            `embed`, whose classes are the folders that contain the images.
        val: the same; None: a share of the training images, chosen by a hash of their names.
        labels: a table with the columns path and label for all images, instead of class folders.
        holdout: this share.
        k: neighbours.
        prefix: which encoder to use if the file contains several.
        resize, crop: as in `embed`.

    Raises:
        ValueError: see `embed`; or a split has no labelled image, there is one class only, or there are fewer
            than k training images.
    """
    import torch

    from cl.features.scores import knn_accuracy, linear_probe
    from cl.hub import encoder as files
    from cl.hub import listing

    if not 0 < holdout < 1:
        raise ValueError(f"holdout={holdout}, expected a share between 0 and 1")
    if isinstance(encoder, str | PathLike):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        encoder = files.load(fspath(encoder), prefix).to(device)
    table = _Labels(Path(labels)) if labels else None
    size = {"resize": resize, "crop": crop}
    bank = _Labelled.of(listing.paths(train), table, encoder, size)
    queries = _Labelled.of(listing.paths(val), table, encoder, size) if val else None
    if queries is None:
        bank, queries = bank.split(holdout)
    if table and (unused := table.unused()):
        progress("evaluate").say(f"{counted(len(unused), 'rows')} of {labels} name no image: {unused[0]}, ...")
    arrays = bank.features, bank.classes, queries.features, queries.classes
    frequent = max(sorted(set(bank.classes)), key=bank.classes.count)
    return Evaluation(
        knn=knn_accuracy(*arrays, k=k),
        linear=linear_probe(*arrays),
        majority=100 * queries.classes.count(frequent) / len(queries.classes),
        train_images=len(bank.classes),
        val_images=len(queries.classes),
        classes=len({*bank.classes, *queries.classes}),
    )
