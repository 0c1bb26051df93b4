"""classify: a classifier from a few labelled images, and the classes of all others."""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click
from click.core import ParameterSource

from cl.commands import ENCODER, encoder_options, size_options
from cl.commands.embed import embed
from cl.console.command import entry_point, progress
from cl.hub.classification import COLUMNS, Classification, Quality, joined, likeliest, summary, write

if TYPE_CHECKING:
    from numpy import ndarray

    from cl.features.classifier import Trained
    from cl.hub.classifier_file import Classifier
    from cl.hub.encoder import Encoder
    from cl.hub.feature_files import Features

FILE = ".safetensors"


def classify(
    labels: "str | PathLike[str] | None" = None,
    images: "str | PathLike[str] | Sequence[str | PathLike[str]] | None" = None,
    *,
    encoder: "str | PathLike[str] | Encoder | None" = None,
    features: "str | PathLike[str] | None" = None,
    classifier: "str | PathLike[str] | None" = None,
    to: "str | PathLike[str] | None" = None,
    save: "str | PathLike[str] | None" = None,
    every_class: bool = False,
    finetune: bool = False,
    prefix: str | None = None,
    resize: int | None = None,
    crop: int | None = None,
) -> Classification:
    """Train a classifier on the labelled images, or use a saved one, and classify all images.

    Logistic regression on unit features. Its regularisation and temperature give held-out images the smallest
    log-loss; other held-out images, which chose neither, measure its quality.

    Args:
        labels: a .csv or .parquet table with the columns path, label and optionally group. A cell `a;b`, or
            two rows of a path, give an image two labels; images of a group are held out together.
        images: a file, a folder, a .txt list, a .csv or .parquet table, or a sequence of these.
        encoder: a file or name that `cl.load` takes, or what it returned; None: models/backbone.safetensors.
        features: a file of `cl embed`, instead of images.
        classifier: a file that `save` has written, instead of labels.
        to: the .csv or .parquet file of predictions to write.
        save: the .safetensors file of the classifier to write.
        every_class: write a column for each class even if there are more than 20.
        finetune: train the encoder too, if that lowers the log-loss of held-out images by more than its
            standard error. Then `save` also writes <save>-encoder.safetensors, the `encoder` of the
            classifier. It needs images.
        prefix, resize, crop: as in `embed`.

    Raises:
        ValueError: an input is missing, damaged or of another encoder; there is only one class, or one with a
            single image; labels name missing images; features are not finite.
    """
    from cl.hub import classifier_file
    from cl.hub import encoder as encoders
    from cl.hub.result_tables import target_of

    table, used = (Path(path).expanduser() if path else None for path in (labels, classifier))
    written, saved = target_of(to), target_of(save, (FILE,), "--save")
    _check(table, used, saved)
    tuned = encoder_beside(saved) if finetune and saved else None
    if finetune:
        _check_finetuning(table, features, encoder, tuned)
    if bool(images) == bool(features):
        raise ValueError(
            "give either --images (files, folders, lists, tables) or --features (a file of `cl embed`)"
        )
    if features:
        source: _Source = _FeatureFile(Path(features).expanduser(), encoder, prefix, resize, crop)
    else:
        source = _Images(images, encoder or ENCODER, prefix, resize, crop, finetune=finetune)
    if used:
        answer = _classified(classifier_file.load(used), used, source)
    else:
        assert table
        answer, trained, better = _trained(table, source, finetune=finetune)
        if tuned and better:
            encoders.save(better, tuned)
        if saved:
            classifier_file.save(trained, saved)
    if written:
        write(written, answer, every_class=every_class)
    return answer


def _check(labels: Path | None, classifier: Path | None, save: Path | None) -> None:
    if bool(labels) == bool(classifier):
        raise ValueError(
            "give either --labels (a table) to train a classifier or --classifier (a file of --save) to use"
        )
    if classifier and save:
        raise ValueError(f"--save {save} needs --labels: --classifier {classifier} is saved already")


def encoder_beside(classifier: Path) -> Path:
    """The file of the fine-tuned encoder of a saved classifier."""
    return classifier.with_name(f"{classifier.stem}-encoder{FILE}")


def _check_finetuning(labels: Path | None, features: Any, encoder: Any, tuned: Path | None) -> None:
    if not labels or features:
        found = "--features" if features else "--classifier"
        raise ValueError(f"--finetune trains on --images with --labels, found {found}; leave out one of them")
    if tuned and isinstance(encoder, str | PathLike) and Path(encoder).absolute() == tuned.absolute():
        raise ValueError(f"--finetune would write {tuned} over the --encoder; give --save another name")


def _classified(used: "Classifier", file: Path, source: "_Source") -> Classification:
    """The classes by a saved classifier."""
    used.check(source.notes, file)  # before the images are embedded
    found = source.features()
    used.check(found.notes, file, width=found.features.shape[1])
    if "sha256" not in found.notes:
        progress("classify").say(
            f"the features do not record their encoder; make sure that it trained {file}"
        )
    probabilities = used.head.probabilities(found.features)
    return likeliest(found.names, used.classes, probabilities, several=used.head.several)


def _trained(
    labels: Path, source: "_Source", *, finetune: bool
) -> "tuple[Classification, Classifier, Encoder | None]":
    """The classes by a classifier that is trained on the labelled images, and the encoder if it is too."""
    import numpy as np

    from cl.features.classifier import folds_of, train
    from cl.hub import classifier_file, targets
    from cl.hub.finetuning import Labelled, finetuned_if_better

    table = targets.read(labels, source.names, source.root)
    for remark in table.remarks:
        progress("classify").say(remark)
    folds_of(*table.labelled())  # raises ValueError before the images are embedded
    found = source.features()
    table = table.of(found.names)
    labelled = table.targets.any(1)
    with progress("classify").count(int(labelled.sum()), "labelled images") as report:
        trained = train(found.features[labelled], *table.labelled(), several=table.several, report=report)
    comparison = better = None
    if finetune:
        assert isinstance(source, _Images)
        rows = np.flatnonzero(labelled)
        images = Labelled(
            [source.root / found.names[row] for row in rows],
            found.features[labelled],
            *table.labelled(),
            table.several,
        )
        encoder = source.encoder(found)
        comparison, tuned = finetuned_if_better(encoder, images, trained.head, progress("classify"))
        if tuned:
            better, trained = tuned
            found = source.features(better)
    probabilities = trained.head.probabilities(found.features)
    probabilities[labelled] = trained.calibrated
    answer = replace(
        likeliest(found.names, table.classes, probabilities, several=table.several),
        labels=joined(table.targets, table.classes),
        quality=_quality(trained, *table.labelled()),
        finetuning=comparison,
    )
    notes = {name: note for name, note in found.notes.items() if name in ("sha256", "transform")}
    return answer, classifier_file.Classifier(trained.head, table.classes, notes), better


class _Source(Protocol):
    """Where features come from: `names` from the folder `root`, and `notes` that identify the encoder."""

    names: list[str]
    root: Path
    notes: dict[str, str]

    def features(self) -> "Features": ...


class _FeatureFile:
    def __init__(self, path: Path, *of_images: Any) -> None:
        from cl.hub import matching

        if any(of_images):
            raise ValueError(f"{path} has features already; leave out encoder, prefix, resize and crop")
        self._found = matching.read(path)
        self.names, self.notes = self._found.names, self._found.notes
        self.root = Path(self.notes.get("folder", ""))

    def features(self) -> "Features":
        return self._found


class _Images:
    def __init__(
        self,
        images: Any,
        encoder: Any,
        prefix: str | None,
        resize: int | None,
        crop: int | None,
        *,
        finetune: bool,
    ) -> None:
        from cl.hub import encoder as files
        from cl.hub import listing
        from cl.runtime.machine import default_device

        self._inputs, self._resize, self._crop = listing.paths(images), resize, crop
        self.root, left_out = listing.root_of(self._inputs), Counter[str]()
        self.names = [name for name, _ in listing.images_in(self._inputs, left_out)]
        if not self.names:
            raise ValueError(
                f"no images in {self._inputs[0]}; give images, a folder, a list or a table of images"
            )
        if isinstance(encoder, str | PathLike):
            encoder = files.load(fspath(encoder), prefix).to(default_device())
        if finetune and encoder.config is None:
            raise ValueError(
                "--finetune cannot record this encoder, whose layers differ from those of its architecture; "
                "leave it out"
            )
        self._encoder, self.notes = encoder, {"sha256": encoder.sha256}

    def features(self, tuned: "Encoder | None" = None) -> "Features":
        """By the encoder, or by the one that was trained here, which records the size of images."""
        if tuned:
            found = embed(self._inputs, encoder=tuned)
        else:
            found = embed(self._inputs, encoder=self._encoder, resize=self._resize, crop=self._crop)
        assert found
        return found

    def encoder(self, found: "Features") -> "Encoder":
        """The encoder with the transform of these features."""
        from cl.data.transform import Transform

        encoder = copy.copy(self._encoder)
        encoder.transform = Transform.model_validate_json(found.notes["transform"])
        return encoder


def _quality(trained: "Trained", targets: "ndarray", classes: list[str], groups: "ndarray | None") -> Quality:
    import numpy as np

    from cl.evaluations._shared.shares import independent
    from cl.features.classifier import average_precisions, calibration_error
    from cl.report.intervals import interval

    several, counts = trained.head.several, targets.sum(0)
    errors = tuple(
        calibration_error(each, targets, several=several) for each in (trained.raw, trained.calibrated)
    )
    accuracy = within = mean_precision = None
    if several:
        by_class = average_precisions(trained.calibrated, targets)
        mean_precision = float(by_class.mean())
    else:
        correct = targets[np.arange(len(targets)), trained.calibrated.argmax(1)].astype(float)
        accuracy = 100 * float(correct.mean())
        within = interval(accuracy, independent(correct, groups))
        by_class = 100 * correct @ targets / counts
    return Quality(
        images=len(targets),
        accuracy=accuracy,
        interval=within,
        majority=100 * float(counts.max()) / len(targets),
        mean_average_precision=mean_precision,
        by_class={
            name: (int(count), float(value))
            for name, count, value in zip(classes, counts, by_class, strict=True)
        },
        calibration_error=(errors[0], errors[1]),
        regularisation=trained.regularisation,
    )


@click.command()
@click.option("--labels", help="A .csv or .parquet table with the columns path and label, optionally group.")
@click.option("--images", multiple=True, help="A file, folder, list or table of images; may be repeated.")
@click.option("--features", help="A file of cl embed, instead of --images and --encoder.")
@click.option("--classifier", help="A file of --save, instead of --labels.")
@click.option("--to", help="The predictions to write: .csv or .parquet.")
@click.option("--save", help="The classifier to write, for later images: .safetensors.")
@click.option("--every-class", is_flag=True, help=f"A column for each class, also of more than {COLUMNS}.")
@click.option(
    "--finetune", is_flag=True, help="Train the encoder too, if held-out images show that it helps."
)
@encoder_options
@size_options
@entry_point
def command(**options: Any) -> None:
    """Train a classifier on the images in LABELS, say how good it is, and classify all IMAGES.

    A label `a;b`, or two rows, give an image two labels. Images without a label are predicted. The folds of
    cross-validation keep a group together. The probabilities of a labelled image are of a classifier that was
    not trained on it.

    --finetune trains copies of the encoder on two thirds of the labelled images each, and uses a fine-tuned
    encoder if the log-loss of the held-out third falls by more than its standard error. --save then writes
    the encoder too.

    \b
    cl classify --labels labels.csv --images photos --to predictions.csv --save classifier.safetensors
    cl classify --classifier classifier.safetensors --images new --to more.csv
    """  # noqa: D301
    context = click.get_current_context()
    if options["features"] and context.get_parameter_source("encoder") is ParameterSource.DEFAULT:
        options["encoder"] = None
    found = classify(**options)
    for line in summary(found):
        click.echo(line)
    for option in ("to", "save"):
        if options[option]:
            click.echo(f"wrote {options[option]}")
    if found.finetuning and found.finetuning.better:
        if options["save"]:
            click.echo(
                f"wrote {encoder_beside(Path(options['save']))}: give it as --encoder with this classifier"
            )
        else:
            click.echo("the fine-tuned encoder was not kept; give --save to use it for later images")
