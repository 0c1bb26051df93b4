"""compare: whether one encoder is better than another on the same images."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from cl.commands.embed import embed
from cl.commands.evaluate import across_values
from cl.commands.inputs import labelled
from cl.commands.inputs.feature_files import Features
from cl.commands.inputs.labelled import LabelledImages
from cl.commands.inputs.labels import Labels, opened_table
from cl.commands.paths import File, Inputs, target_of
from cl.console.command import progress
from cl.encoders.encoder import Encoder, opened, remarks
from cl.features.correctness import check_different, correctness
from cl.runtime.tables import columns_of, write_table
from cl.statistics import TAIL, MeasureDifference, PairedComparison, judge


@dataclass(frozen=True)
class EncoderComparison:
    """What labelled images say about two encoders.

    result: the verdict, and percentages of the validation images with paired intervals.
    val_images: without the copies.
    copies: validation images that were left out, because their files are also among the training images;
        `cl.duplicates` finds changed copies.
    columns: the measures of `across`.
    """

    result: PairedComparison
    train_images: int
    val_images: int
    classes: int
    copies: int
    columns: tuple[MeasureDifference, ...] = ()

    @property
    def rows(self) -> list[MeasureDifference]:
        """Every measure."""
        return [*self.result.rows, *self.columns]


def compare(
    a: File | Encoder,
    b: File | Encoder,
    *,
    train: Inputs,
    val: Inputs | None = None,
    labels: File | None = None,
    columns: Mapping[str, str] | None = None,
    separator: str | None = None,
    holdout: float = 0.2,
    ungrouped: bool = False,
    k: int = 20,
    across: str | None = None,
    to: File | None = None,
    resize: int | None = None,
    crop: int | None = None,
) -> EncoderComparison:
    """Whether the features of encoder B classify more images correctly than those of encoder A.

    The measures are kNN and logistic regression as in `evaluate`, and nearest class means of 1, 4 and 16
    training images per class. Differences are paired image by image. The verdict is that of the mean of all
    measures: whether its 95 % interval excludes 0. Intervals are for other validation images, with these
    training images; images of a group or burst, and copies, count together.

    Args:
        a, b: files or names that `cl.load` takes, or what it returned.
        train, val, labels, columns, separator, holdout, ungrouped: as in `evaluate`.
        k: number of neighbours; all training images if there are fewer.
        across: as in `evaluate`, beside the verdict. The worst value has the lowest mean of A and B.
        to: a .csv or .parquet file to write, with the fields of `cl.MeasureDifference` as columns.
        resize, crop: as in `embed`, for an encoder whose file records no transform.

    Raises:
        ValueError: see `evaluate`; or an encoder gives all images the same features, or all validation images
            are also training images.
    """
    target = target_of(to, a, b, train, val, labels)
    say = progress("compare").say
    pair, names = _pair(a, b, resize, crop, say)
    table = opened_table(labels, columns, separator, {"--across": across} if across else {})
    bank, queries, copies = labelled.read(
        train,
        val,
        partial(_side_by_side, pair, names),
        [encoder.width for encoder in pair],
        labels=table,
        holdout=holdout,
        ungrouped=ungrouped,
        say=say,
    )
    for name, rows in zip(names, bank.features, strict=True):
        check_different(torch.from_numpy(rows), name)
    scores = correctness(tuple(bank.features), bank.labels, tuple(queries.features), queries.labels, k=k)
    by_value = [*_across(across, table, bank, queries, k)] if across and table else []
    comparison = EncoderComparison(
        judge(scores, queries.together),
        train_images=len(bank),
        val_images=len(queries),
        classes=len({*bank.labels, *queries.labels}),
        copies=copies,
        columns=tuple(by_value),
    )
    if target:
        write_table(target, columns_of(MeasureDifference, comparison.rows))
    return comparison


def _pair(
    a: File | Encoder,
    b: File | Encoder,
    resize: int | None,
    crop: int | None,
    say: Callable[..., object],
) -> tuple[list[Encoder], list[str]]:
    """Both encoders with their image sizes, and their names in messages; says what makes them doubtful."""
    pair = [copy.copy(opened(given)) for given in (a, b)]
    if (resize or crop) and all(encoder.records_size for encoder in pair):
        raise ValueError("the files of both encoders record a size of images; leave out --resize and --crop")
    names = [
        f"encoder {letter} ({given})" if isinstance(given, str | PathLike) else f"encoder {letter}"
        for given, letter in ((a, "A"), (b, "B"))
    ]
    for encoder, name in zip(pair, names, strict=True):
        if not encoder.records_size:
            encoder.set_size(resize, crop)
        say(*remarks(encoder, name))
    crops = [encoder.transform.crop for encoder in pair]
    if crops[0] != crops[1]:
        choice = "" if all(encoder.records_size for encoder in pair) else " (--resize and --crop set them)"
        say(f"crops have {crops[0]} px for A, {crops[1]} px for B{choice}, which may make a difference")
    return pair, names


def _across(
    name: str, table: Labels, bank: LabelledImages, queries: LabelledImages, k: int
) -> Iterator[MeasureDifference]:
    """The measures of `across`, paired; those of the worst of V values leave out TAIL / V at each end."""
    for measure, right, at, values in across_values(name, table, bank, queries, k):
        yield judge({measure: 100 * right[at]}, queries.together[at], tail=TAIL / values).overall


def _side_by_side(pair: Sequence[Encoder], names: Sequence[str], images: list[Path]) -> Features:
    """The features of images by both encoders, (N, D_A + D_B)."""
    both = []
    for encoder, name in zip(pair, names, strict=True):
        try:
            features = embed(images, encoder=encoder)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        assert features
        both.append(features)
    a, b = both
    if other := {*a.names} ^ {*b.names}:
        raise ValueError(
            f"one encoder cannot read {min(other)}, which the other reads; give images that both read, or "
            "encoders of the same bands"
        )
    return Features(a.names, np.concatenate([a.features, b.features], axis=1))
