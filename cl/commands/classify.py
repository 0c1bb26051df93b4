"""classify: a classifier from a few labelled images, and the classes of all others."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cl.commands import ENCODER, encoder_options
from cl.console.command import entry_point, progress
from cl.console.wording import counted

if TYPE_CHECKING:
    import numpy as np

    from cl.features.classifier import Trained
    from cl.hub.classifier_file import Classifier
    from cl.hub.encoder import Encoder
    from cl.hub.feature_files import Features
    from cl.hub.labels import Labels
    from cl.report.intervals import Interval

    Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

FORMATS = (".csv", ".parquet")
COLUMNS = 20  # classes with a column each
LINES = 12  # classes on the screen
FEW = 200  # labelled images that overstate the calibration error
LIKELY = 0.5  # probability of a label that is predicted, where an image may have several


@dataclass(frozen=True)
class Quality:
    """What cross-validation measures on labelled images, in percent; None where it does not apply.

    labelled: number of labelled images.
    accuracy: images whose class has the largest probability.
    interval: the 95 % interval of the accuracy, wider where images belong to groups.
    majority: the accuracy of always predicting the most frequent class.
    mean_average_precision: of images with several labels each, instead of the accuracy.
    by_class: number of images and accuracy, or average precision, of each class.
    calibration_error: the expected calibration error before and after temperature scaling.
    regularisation: C of scikit-learn's LogisticRegression.
    """

    labelled: int
    accuracy: float | None
    interval: "Interval | None"
    majority: float | None
    mean_average_precision: float | None
    by_class: dict[str, tuple[int, float]]
    calibration_error: tuple[float, float]
    regularisation: float


@dataclass(frozen=True)
class Classification:
    """The classes of N images.

    names: N paths.
    labels: the labels in the table, joined by ";"; "" for an image without.
    predicted: the likeliest class, or the classes with a probability of at least 0.5, joined by ";", where an
        image may have several.
    classes: the C names.
    probabilities: (N, C) float32; of a labelled image, by a head that was not trained on it.
    quality: of a classifier that was trained now.
    """

    names: list[str]
    labels: list[str]
    predicted: list[str]
    classes: list[str]
    probabilities: "np.ndarray"
    quality: Quality | None


def classify(
    labels: "str | PathLike[str] | None" = None,
    images: "Paths | None" = None,
    *,
    encoder: "str | PathLike[str] | Encoder | None" = None,
    features: "str | PathLike[str] | None" = None,
    classifier: "str | PathLike[str] | None" = None,
    to: "str | PathLike[str] | None" = None,
    save: "str | PathLike[str] | None" = None,
    every_class: bool = False,
    prefix: str | None = None,
    resize: int | None = None,
    crop: int | None = None,
) -> Classification:
    """Train a classifier on the labelled images, or use one, and classify all images.

    Logistic regression on the encoder's unit features. Its regularisation and temperature give held-out images
    the smallest log-loss; the reported quality is of images that chose neither.

    Args:
        labels: a .csv or .parquet table with the columns path, label and optionally group. A cell `a;b`, or
            two rows of a path, give an image two labels; images of a group are held out together.
        images: a file, a folder, a .txt list, a .csv or .parquet table, or a sequence of these.
        encoder: a file or name that `cl.load` takes, or what it returned; default: models/backbone.safetensors.
        features: a file of `cl embed`, instead of images and encoder.
        classifier: a file that `save` has written, instead of labels.
        to: the .csv or .parquet file of predictions to write.
        save: the .safetensors file of the classifier to write.
        every_class: write a column for each of more than 20 classes.
        prefix: which encoder to use if the file contains several.
        resize: short side in pixels, for an encoder whose file records no transform; together with crop.
        crop: side in pixels of the centre crop.

    Raises:
        ValueError: an input is missing, damaged or of another encoder; there is only one class, or one with a
            single image; labels name missing images; features are not finite.
    """
    _check(labels, images, encoder, features, classifier, to, save)
    import numpy as np

    from cl.features.classifier import train
    from cl.hub import classifier_file

    trained = classifier_file.load(Path(classifier)) if classifier else None
    source = Path(features) if features else None
    options = {"prefix": prefix, "resize": resize, "crop": crop}
    if source:
        found = _read(source)
    else:
        found = _embedded(images, encoder or ENCODER, options, labels, trained, classifier)  # type: ignore
    if trained:
        trained.check(found.notes, Path(classifier))  # type: ignore[arg-type]
        probabilities = trained.head.probabilities(found.features)
        result = Classification(
            found.names,
            [""] * len(found.names),
            _predicted(probabilities, trained.classes, several=trained.head.several),
            trained.classes,
            probabilities,
            None,
        )
    else:
        ...
    return result
