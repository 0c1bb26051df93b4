"""evaluate: how well an encoder's features separate labelled images."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cl.commands.defaults import ENCODER
from cl.commands.embed import embed
from cl.commands.inputs import labelled
from cl.commands.inputs.labelled import LabelledImages
from cl.commands.inputs.labels import Labels, opened_table
from cl.commands.paths import File, Inputs, target_of
from cl.console.command import progress
from cl.encoders.encoder import Encoder, opened, remarks
from cl.features.extraction import PIXELS, Pixels
from cl.features.scores import checked, correct_by, correct_in_parts, knn_correct
from cl.runtime.metric_info import LEVEL
from cl.runtime.tables import columns_of, write_table
from cl.statistics import independent, interval


class _WithPixels(Encoder):
    """Gives an image's pixels after its features, so that the image is decoded once."""

    def __init__(self, encoder: Encoder, resize: int | None, crop: int | None) -> None:
        self.__dict__.update(encoder.__dict__)  # the same weights and mode
        self.set_size(resize, crop)
        self.width += self.transform.channels * min(self.transform.crop, PIXELS) ** 2

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, S, S) to (N, D + C s s)."""
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
    measures: these four with their intervals, then those of `predict` and `across`.
    """

    knn: float
    linear: float
    pixels: float
    majority: float
    train_images: int
    val_images: int
    classes: int
    measures: list[Accuracy]


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
    predict: str | None = None,
    across: str | None = None,
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
        ungrouped: each image without a group stands alone. Otherwise bursts of them (`cl.features.series`)
            are groups.
        k: number of neighbours.
        predict: a column of `labels`, such as site: how well the features predict it.
        across: a column of `labels`: the class of the images of each value is found from the training images
            of the other values, if these have the class; also that of the value where the fewest are right,
            with an interval that allows for the choice of the worst (Bonferroni).
        to: a .csv or .parquet file to write, with the fields of `Accuracy` as columns.
        prefix, resize, crop: as in `embed`.

    Raises:
        ValueError: see `embed`; or a split has no labelled image, there is one class only, or there are fewer
            than k training images.
    """
    target = target_of(to, encoder, train, val, labels)
    loaded, say = opened(encoder, prefix), progress("evaluate").say
    say(*remarks(loaded, "the encoder"))
    both = _WithPixels(loaded, resize, crop)
    others = {option: name for option, name in (("--predict", predict), ("--across", across)) if name}
    table = opened_table(labels, columns, separator, others)
    bank, queries, copies = labelled.read(
        train,
        val,
        partial(embed, encoder=both),
        [loaded.width],
        labels=table,
        holdout=holdout,
        ungrouped=ungrouped,
        say=say,
    )
    if copies:
        say(f"left out validation images that are also training images: {copies}")
    x, y = bank.features[0], queries.features[0]
    knn, linear, majority = correct_by(x, bank.labels, y, queries.labels, k=k).values()
    raw = knn_correct(*checked(bank.pixels, bank.labels, queries.pixels, queries.labels), k=k).numpy()
    named = {f"kNN, k = {k}": knn, "logistic regression": linear, "kNN, raw pixels": raw.astype(float)}
    named["most frequent class"] = majority
    measures = [_accuracy(name, right, queries.together) for name, right in named.items()]
    of_knn, of_linear, of_pixels, of_majority = (each.percent for each in measures)
    if table and predict:
        measures += _predicted(predict, table, bank, queries, k, say)
    if table and across:
        for measure, right, at, values in across_values(across, table, bank, queries, k):
            level = 1 - (1 - LEVEL) / values  # Bonferroni
            measures.append(_accuracy(measure, right[at, 0], queries.together[at], level))
    if target:
        write_table(target, columns_of(Accuracy, measures))
    counts = len(bank), len(queries), len({*bank.labels, *queries.labels})
    return Evaluation(of_knn, of_linear, of_pixels, of_majority, *counts, measures)


def _accuracy(measure: str, right: np.ndarray, together: np.ndarray, level: float = LEVEL) -> Accuracy:
    percent, images = 100 * float(right.mean()), independent(right, together, level=level)
    return Accuracy(measure, percent, *(interval(percent, images, level=level) or (None, None)))


def _predicted(
    name: str,
    table: Labels,
    bank: LabelledImages,
    queries: LabelledImages,
    k: int,
    say: Callable[..., object],
) -> Iterator[Accuracy]:
    """How often the value of a column is found from the features, of the images that have one."""
    known, truth = _cells(table, "--predict", name, bank, queries)
    train, val = known != "", truth != ""
    if unknown := int((~np.isin(truth[val], known)).sum()):
        say(f"--predict {name}: images of values without a training image, which count as errors: {unknown}")
    sides = bank.features[0][train], known[train], queries.features[0][val], truth[val]
    for measure, right in correct_by(*sides, k=min(k, int(train.sum()))).items():
        yield _accuracy(f"{name}: {measure}", right, queries.together[val])


def _cells(
    table: Labels, option: str, name: str, bank: LabelledImages, queries: LabelledImages
) -> tuple[np.ndarray, np.ndarray]:
    """(N,) and (M,): what the column that the option names says about training and validation images."""
    known, values = (table.cells(option, images.names, images.files) for images in (bank, queries))
    if not any(values):
        raise ValueError(f"{option} {name}: the validation images have none; choose another column")
    if len({*known} - {""}) < 2:
        raise ValueError(
            f"{option} {name}: the training images have fewer than two values; choose another column"
        )
    return known, values


def across_values(
    name: str, table: Labels, bank: LabelledImages, queries: LabelledImages, k: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray, int]]:
    """Whose class kNN and logistic regression find from training images of other values of a column.

    By E encoders. The worst value has the lowest mean over images and encoders. Images of a class that no
    other value has in training do not count, nor do images without a value.

    Yields:
        The measure; whether each encoder is right (M, E); which images count (M,), of all values or of the
        worst; of how many values it is the worst, or 1 for all images.
    """
    known, values = _cells(table, "--across", name, bank, queries)
    parts, shared = [], np.zeros(len(values), bool)
    for value in np.unique(values[values != ""]):
        train, val = (known != value) & (known != ""), values == value
        if len({*bank.labels[train]}) < 2:
            raise ValueError(
                f"--across {name}: without {value}, the training images have fewer than two classes; choose "
                "another column"
            )
        parts.append((train, val))
        shared[val] = np.isin(queries.labels[val], bank.labels[train])
    if not shared.any():
        raise ValueError(
            f"--across {name}: no validation image has a class of other values; choose another column"
        )
    found = [
        correct_in_parts(x, bank.labels, y, queries.labels, parts, k=k)
        for x, y in zip(bank.features, queries.features, strict=True)
    ]
    of_values = [val & shared for _, val in parts if shared[val].any()]
    for measure in ("kNN", "logistic regression"):
        right = np.stack([each[measure] for each in found], 1)
        yield f"across {name}: {measure}", right, shared, 1
        of_worst = min(of_values, key=lambda counts: right[counts].mean())
        title = f"worst {name} ({values[of_worst][0]}): {measure}"
        yield title, right, of_worst, len(of_values)
