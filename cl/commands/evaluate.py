"""evaluate: how well an encoder's features separate labelled images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cl.commands import ENCODER, encoder_options, size_options
from cl.commands.embed import embed
from cl.console.command import entry_point, progress
from cl.console.wording import counted

if TYPE_CHECKING:
    import numpy as np

    from cl.hub.encoder import Encoder
    from cl.hub.feature_files import Features
    from cl.hub.labels import Labels
    from cl.report.intervals import Interval

    # Features (N, D), classes (N,), and groups (N,), or names of images without a group.
    Images = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Evaluation:
    """Percentages of the validation images whose class is found.

    knn: the nearest training images vote.
    linear: logistic regression.
    majority: every image gets the most frequent class of the training images.
    """

    knn: float
    linear: float
    majority: float
    train_images: int
    val_images: int
    classes: int

    def interval(self, percent: float) -> "Interval | None":
        """Wilson's 95 % interval of one of the percentages: how far other validation images could move it."""
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
    """Accuracy of nearest neighbours and of logistic regression on the features of a frozen encoder.

    Features are those of `embed`: one view per image, without augmentation. kNN: the k nearest training
    images by cosine vote with weight exp(cosine / 0.07) (Wu et al. 2018, section 3.4). Linear: multinomial
    logistic regression by L-BFGS on standardised features, C = 1.

    Args:
        encoder: a file or name that `cl.load` takes, or what it returned.
        train: as `images` of `embed`. The class is the column label of a table, or else the folder below a
            given folder, or else the folder that contains the image. Images without a class are left out.
        val: the same; None: a share of the training images, chosen by a hash of their names or groups.
        labels: a table with the columns path and label, instead of folders.
        holdout: the share of the training images if `val` is None.
        k: number of neighbours.
        prefix, resize, crop: as in `embed`.

    Raises:
        ValueError: see `embed`; or a split has no labelled image, there is one class only, or there are fewer
            than k training images.
    """
    import numpy as np
    import torch

    from cl.features.scores import knn_accuracy, linear_probe
    from cl.hub import encoder as files
    from cl.hub.labels import Labels

    if not 0 < holdout < 1:
        raise ValueError(f"holdout={holdout}, expected a share between 0 and 1")
    if isinstance(encoder, str | PathLike):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        encoder = files.load(fspath(encoder), prefix).to(device)
    table = Labels(Path(labels).expanduser()) if labels else None
    embedded = partial(embed, encoder=encoder, resize=resize, crop=crop)
    bank = _labelled(train, table, embedded)
    bank, queries = _split(bank, holdout) if val is None else (bank, _labelled(val, table, embedded))
    if table and (unused := table.unused()):
        progress("evaluate").say(
            f"{labels}: left out {counted(len(unused), 'rows')}, such as {unused[0]}: no such image"
        )
    (x, labels_x, _), (y, labels_y, _) = bank, queries
    classes, counts = np.unique(labels_x, return_counts=True)
    return Evaluation(
        knn=knn_accuracy(x, labels_x, y, labels_y, k=k),
        linear=linear_probe(x, labels_x, y, labels_y),
        majority=100 * float((labels_y == classes[counts.argmax()]).mean()),
        train_images=len(x),
        val_images=len(y),
        classes=len({*classes, *labels_y}),
    )


def _labelled(
    images: "str | PathLike[str] | Sequence[str | PathLike[str]]",
    table: "Labels | None",
    embedded: "Callable[[Path], Features | None]",
) -> "Images":
    """The images of inputs that have a label.

    Raises:
        ValueError: there are none.
    """
    import numpy as np

    from cl.hub.labels import classes
    from cl.hub.listing import paths

    features, known, count = [], [], 0
    for given in paths(images):
        found = embedded(given)
        assert found is not None
        rows = [(i, *label) for i, label in enumerate(classes(given, found.names, table)) if label]
        features.append(found.features[[i for i, _, _ in rows]])
        known += [(label, group or found.names[i]) for i, label, group in rows]
        count += len(found.names)
    if not known:
        raise ValueError(
            f"none of the {counted(count, 'images')} in {images} has a label; put the images of each class "
            "into a folder, or give a table with the columns path and label"
        )
    if unlabelled := count - len(known):
        progress("evaluate").say(f"left out {counted(unlabelled, 'images')} without a label")
    labels, groups = zip(*known, strict=True)
    return np.concatenate(features), np.array(labels), np.array(groups)


def _split(images: "Images", share: float) -> "tuple[Images, Images]":
    """Training and validation images; a group stays together."""
    import numpy as np

    from cl.sources._shared.trees import held_out, share_of_few

    groups = images[2].tolist()
    share = share_of_few(set(groups), share)
    held = np.array([held_out(group, share) for group in groups])
    if held.all() or not held.any():
        raise ValueError(
            f"holdout={share} of {counted(len(held), 'images')} leaves {(~held).sum()} training and "
            f"{held.sum()} validation images, expected at least one of each; give other images with val"
        )
    return tuple(part[~held] for part in images), tuple(part[held] for part in images)


@click.command()
@click.option(
    "--train", multiple=True, required=True, type=click.Path(path_type=Path), help="Labelled images."
)
@click.option(
    "--val",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Other labelled images to test on; without it, a share of the first is held out.",
)
@click.option(
    "--labels",
    type=click.Path(path_type=Path),
    help="A table with the columns path and label, instead of folders.",
)
@click.option("--holdout", type=float, default=0.2, show_default=True, help="The share that is held out.")
@click.option("--k", type=click.IntRange(min=1), default=20, show_default=True, help="Neighbours that vote.")
@encoder_options
@size_options
@entry_point
def command(val: tuple[Path, ...], **options: Any) -> None:
    """Measure how well the features of an encoder separate the classes of labelled images.

    An image's class is the folder that it is in, below the given folder, or its label in a table. The encoder
    stays as it is: each image gives one feature vector, without augmentation. kNN: the nearest training
    images by cosine vote with weight exp(cosine / 0.07). Logistic regression: multinomial, by L-BFGS with
    C = 1, on standardised features. Percentages are of the validation images, with Wilson's 95 % intervals.
    """
    found = evaluate(val=val or None, **options)
    click.echo(
        f"{counted(found.train_images, 'training images')}, "
        f"{counted(found.val_images, 'validation images')}, {counted(found.classes, 'classes')}"
    )
    for name, percent in (
        (f"kNN, k = {options['k']}", found.knn),
        ("logistic regression", found.linear),
        ("most frequent class", found.majority),
    ):
        click.echo(f"{name:<20} {percent:5.1f} % {found.interval(percent)}")
