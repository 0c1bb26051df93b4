"""evaluate: how well an encoder's features separate labelled images."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from cl.commands import ENCODER, encoder_options, labelled_options, size_options
from cl.commands.embed import embed
from cl.commands.inputs.paths import File, Inputs
from cl.console.command import entry_point, progress
from cl.console.wording import counted

if TYPE_CHECKING:
    from cl.encoders.encoder import Encoder


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
    majority: every image gets the most frequent class of the training images.
    independent: how many independent images each of these three counts; 0 if all are of one group.
    """

    knn: float
    linear: float
    majority: float
    k: int
    train_images: int
    val_images: int
    classes: int
    independent: tuple[float, ...]

    def rows(self) -> Iterator[Accuracy]:
        """Every measure."""
        from cl.statistics import interval

        measures = {
            f"kNN, k = {self.k}": self.knn,
            "logistic regression": self.linear,
            "most frequent class": self.majority,
        }
        for (measure, percent), images in zip(measures.items(), self.independent, strict=True):
            yield Accuracy(measure, percent, *(interval(percent, images) or (None, None)))


def evaluate(
    encoder: "File | Encoder" = ENCODER,
    *,
    train: Inputs,
    val: Inputs | None = None,
    labels: File | None = None,
    holdout: float = 0.2,
    k: int = 20,
    to: File | None = None,
    prefix: str | None = None,
    resize: int | None = None,
    crop: int | None = None,
) -> Evaluation:
    """Accuracy of nearest neighbours and of logistic regression on the features of a frozen encoder.

    Features are those of `embed`: one view per image, without augmentation. kNN: the k nearest training
    images by cosine vote with weight exp(cosine / 0.07) (Wu et al. 2018, section 3.4). Linear: multinomial
    logistic regression by L-BFGS on standardised features, C = 1. Validation images of a group, and equal
    files, count together in the intervals.

    Args:
        encoder: a file or name that `cl.load` takes, or what it returned.
        train: as `images` of `embed`. The class is the column label of a table, or else the folder below a
            given folder, or else the folder that contains the image. Images without a class are left out.
        val: the same; None: a share of the training images, chosen by a hash of their names or groups.
        labels: a table with the columns path, label and optionally group, instead of folders.
        holdout: the share of the training images if `val` is None.
        k: number of neighbours.
        to: a .csv or .parquet file to write, with the fields of `Accuracy` as columns.
        prefix, resize, crop: as in `embed`.

    Raises:
        ValueError: see `embed`; or a split has no labelled image, there is one class only, or there are fewer
            than k training images.
    """
    import numpy as np

    from cl.commands.inputs import labelled
    from cl.commands.inputs.held_together import held_together
    from cl.commands.outputs.tables import target_of
    from cl.encoders.encoder import opened
    from cl.features.scores import checked, knn_correct, linear_correct
    from cl.runtime.tables import columns_of, write_table
    from cl.statistics import independent

    target = target_of(to, encoder, train, val, labels)
    embedded = partial(embed, encoder=opened(encoder, prefix), resize=resize, crop=crop)
    say = progress("evaluate").say
    bank, queries, copies = labelled.read(train, val, embedded, labels=labels, holdout=holdout, say=say)
    if copies:
        say(f"left out validation images that are also training images: {copies}")
    rows = checked(bank.features, bank.labels, queries.features, queries.labels)
    classes, counts = np.unique(bank.labels, return_counts=True)
    right = [each.numpy().astype(float) for each in (knn_correct(*rows, k=k), linear_correct(*rows))]
    right.append((queries.labels == classes[counts.argmax()]).astype(float))
    knn, linear, majority = (100 * float(each.mean()) for each in right)
    groups, _ = held_together(queries.groups.tolist(), queries.files)
    evaluation = Evaluation(
        knn=knn,
        linear=linear,
        majority=majority,
        k=k,
        train_images=len(bank),
        val_images=len(queries),
        classes=len({*classes, *queries.labels}),
        independent=tuple(independent(each, groups) for each in right),
    )
    if target:
        write_table(target, columns_of(Accuracy, [*evaluation.rows()]))
    return evaluation


@click.command()
@labelled_options
@click.option("--to", type=click.Path(path_type=Path), help="A file for the table: .csv or .parquet.")
@encoder_options
@size_options
@entry_point
def command(val: tuple[Path, ...], **options: Any) -> None:
    """Measure how well the features of an encoder separate the classes of labelled images.

    An image's class is the folder that it is in, below the given folder, or its label in a table. The encoder
    stays as it is: each image gives one feature vector, without augmentation. kNN: the nearest training
    images by cosine vote with weight exp(cosine / 0.07). Logistic regression: multinomial, by L-BFGS with
    C = 1, on standardised features. Percentages are of the validation images, with 95 % intervals, in which
    images of a group (a column of the table) and equal files count together.
    """
    evaluation = evaluate(val=val or None, **options)
    click.echo(
        f"{counted(evaluation.train_images, 'training images')}, "
        f"{counted(evaluation.val_images, 'validation images')}, {counted(evaluation.classes, 'classes')}"
    )
    for row in evaluation.rows():
        within = "(one group of images: no interval)"
        if row.low is not None:
            within = f"[{row.low:.1f}, {row.high:.1f}]"
        click.echo(f"{row.measure:<20} {row.percent:5.1f} % {within}")
