"""The result of `cl classify`: predicted classes and how accurate they are; written to a file or as text."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cl.console.wording import counted
from cl.runtime.tables import write_table

if TYPE_CHECKING:
    from numpy import ndarray

    from cl.commands.classifiers.finetuning import FinetuningComparison

FILE = ".safetensors"  # of a classifier
COLUMNS = 20  # classes with a column each
LINES = 12  # classes on the screen
WIDTH = 36  # of a class's name
LIKELY = 0.5  # probability of a predicted label, where an image may have several


@dataclass(frozen=True)
class Quality:
    """What held-out labelled images measure, in percent.

    images: number of labelled images.
    accuracy: images whose likeliest class is right; None if images have several labels.
    interval: the ends of the accuracy's 95 % interval, wider where images belong to groups or bursts.
    majority: images of the most frequent class.
    mean_average_precision: None if images have one label.
    by_class: number of images and accuracy, or average precision, of each class.
    largest_calibration_error: the upper end of the calibration error's one-sided 95 % interval.
    """

    images: int
    accuracy: float | None
    interval: tuple[float, float] | None
    majority: float
    mean_average_precision: float | None
    by_class: dict[str, tuple[int, float]]
    largest_calibration_error: float


@dataclass(frozen=True, repr=False)
class Classification:
    """The classes of N images.

    names: their paths.
    labels: the labels in the table, joined by ";", and "" for an image without; [] with a saved classifier.
    predicted: the likeliest class; where an image may have several, those with a probability of at least 0.5,
        joined by ";".
    classes: the C classes.
    probabilities: (N, C) float32; for a labelled image, by a head that was not trained on it.
    quality: None with a saved classifier.
    finetuning: what `finetune` compared, and so which encoder was used; None without it.
    """

    names: list[str]
    labels: list[str]
    predicted: list[str]
    classes: list[str]
    probabilities: "ndarray"
    quality: Quality | None
    finetuning: "FinetuningComparison | None" = None

    def __repr__(self) -> str:
        """What the command prints."""
        return "\n".join(summary(self))


def likeliest(
    names: list[str], classes: list[str], probabilities: "ndarray", *, multilabel: bool
) -> Classification:
    """The likeliest classes of images without labels."""
    if multilabel:
        predicted = joined(probabilities >= LIKELY, classes)
    else:
        predicted = [classes[number] for number in probabilities.argmax(1)]
    return Classification(names, [], predicted, classes, probabilities, None)


def joined(targets: "ndarray", classes: list[str]) -> list[str]:
    """The names of each image's classes, for targets (N, C) of 0 and 1."""
    return [";".join(classes[number] for number in row.nonzero()[0]) for row in targets]


def write(to: Path, answer: Classification, *, every_class: bool) -> None:
    """Write the predictions, whole or not at all."""
    columns: dict[str, Any] = {"path": answer.names}
    if answer.labels:
        columns["label"] = answer.labels
    columns |= {"predicted": answer.predicted, "probability": answer.probabilities.max(1)}
    if every_class or len(answer.classes) <= COLUMNS:
        columns |= {
            f"probability_{name}": answer.probabilities[:, i] for i, name in enumerate(answer.classes)
        }
    if to.suffix == ".csv":
        columns = {
            name: column if isinstance(column, list) else [f"{number:.4f}" for number in column]
            for name, column in columns.items()
        }
    write_table(to, columns)


def encoder_beside(classifier: Path) -> Path:
    """The file of the fine-tuned encoder of a saved classifier."""
    return classifier.with_name(f"{classifier.stem}-encoder{FILE}")


def summary(answer: Classification) -> Iterator[str]:
    """Lines of at most 80 columns: fine-tuning, the quality, and the worst classes."""
    if answer.finetuning:
        yield _compared(answer.finetuning)
    total = f"{counted(len(answer.names), 'images')}, {counted(len(answer.classes), 'classes')}"
    new = answer.predicted
    if answer.labels:
        new = [name for name, label in zip(new, answer.labels, strict=True) if not label]
    names = {*answer.classes}  # a name may contain a semicolon, if --separator is another character
    predicted = Counter(name for row in new for name in ([row] if row in names else row.split(";")))
    if answer.quality is None:
        yield total
        yield f"  {_cell('class')}{'predicted':>12}"
        shown = sorted(answer.classes, key=lambda name: -predicted[name])
        yield from (f"  {_cell(name)}{predicted[name]:>12}" for name in shown[:LINES])
    else:
        yield f"{total}: {answer.quality.images} labelled, {len(new)} to predict"
        yield from _measured(answer.quality)
        measure = "accuracy" if answer.quality.accuracy is not None else "precision"
        yield f"  {_cell('class, worst first')}{'labelled':>10}{measure:>12}{'predicted':>12}"
        by_class = answer.quality.by_class
        shown = sorted(answer.classes, key=lambda name: by_class[name][1])
        for name in shown[:LINES]:
            count, value = by_class[name]
            yield f"  {_cell(name)}{count:>10}{value:>10.1f} %{predicted[name]:>12}"
    if len(shown) > LINES:
        yield f"  and {counted(len(shown) - LINES, 'more classes')}"


def _measured(quality: Quality) -> Iterator[str]:
    if quality.accuracy is None:
        yield "some images have several labels, so each label is predicted by itself"
        yield f"mean average precision {quality.mean_average_precision:5.1f} %, of held-out images"
    else:
        within = " [{:.1f}, {:.1f}]".format(*quality.interval) if quality.interval else ""
        yield f"accuracy               {quality.accuracy:5.1f} %{within}, of held-out images"
        yield f"always the same class  {quality.majority:5.1f} %"
    yield f"calibration error      {quality.largest_calibration_error:5.1f} % at most"


def _compared(comparison: "FinetuningComparison") -> str:
    (frozen, tuned), (before, after) = comparison.log_loss, comparison.accuracy
    measure = "mean average precision" if comparison.multilabel else "accuracy"
    used = "fine-tuned" if comparison.better else "frozen"
    return (
        f"the {used} encoder is used: on held-out images, fine-tuning changes\n"
        f"the log-loss from {frozen:.3f} to {tuned:.3f} (standard error {comparison.error:.3f})\n"
        f"and the {measure} from {before:.1f} % to {after:.1f} %"
    )


def _cell(name: str) -> str:
    return (name if len(name) <= WIDTH else f"{name[: WIDTH - 3]}...").ljust(WIDTH)
