"""classify: a classifier from a few labelled images, and the classes of all others."""

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any, cast

import numpy as np

from cl.commands.classifiers import file as classifier_file
from cl.commands.classifiers import heads
from cl.commands.classifiers.file import Classifier
from cl.commands.classifiers.finetuning import finetuned_if_better
from cl.commands.classifiers.heads import Trained
from cl.commands.defaults import ENCODER
from cl.commands.embed import embed
from cl.commands.inputs import listing, matching
from cl.commands.inputs.feature_files import Features
from cl.commands.inputs.held_together import with_bursts
from cl.commands.inputs.labels import Labels, Targets, opened_table, read_targets
from cl.commands.outputs import classification
from cl.commands.outputs.classification import Classification, Quality, joined, likeliest
from cl.commands.paths import File, Inputs, existing, target_of
from cl.console.command import progress
from cl.data.transform import Transform
from cl.encoders.encoder import Encoder, opened
from cl.encoders.encoder import save as save_encoder
from cl.images.band_files import SUFFIXES as BAND_SUFFIXES
from cl.images.folders import SUFFIXES, wrong_suffix
from cl.statistics import independent, inflation, interval, separated


def classify(
    labels: File | None = None,
    images: Inputs | None = None,
    *,
    encoder: File | Encoder = ENCODER,
    features: File | None = None,
    classifier: File | None = None,
    to: File | None = None,
    save: File | None = None,
    columns: Mapping[str, str] | None = None,
    separator: str | None = None,
    every_class: bool = False,
    finetune: bool = False,
    ungrouped: bool = False,
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
        columns: what the table calls these, such as {"path": "image_id"}; for label also columns with a 1 for
            the images of a class, such as "cat,dog".
        separator: between the labels in a cell; None: a semicolon.
        images: a file, a folder, a .txt list, a .csv or .parquet table, or a sequence of these.
        encoder: a file or name that `cl.load` takes, or what it returned.
        features: a file of `cl embed`, instead of images.
        classifier: a file that `save` has written, instead of labels.
        to: the .csv or .parquet file of predictions to write.
        save: the .safetensors file of the classifier to write.
        every_class: write a column for each class even if there are more than 20.
        finetune: train the encoder too, if that lowers the log-loss of held-out images by more than its
            standard error. Then `save` also writes <save>-encoder.safetensors, the `encoder` of the
            classifier. It needs images.
        ungrouped: each labelled image stands alone. Otherwise, bursts of images without a group are held
            out together (`cl.features.series`).
        prefix, resize, crop: as in `embed`; by default, the size that `classifier` records.

    Raises:
        ValueError: an input is missing, damaged or of another encoder; there is only one class, or one with a
            single image; no image has a label; features are not finite.
    """
    table, used = (Path(path).expanduser() if path else None for path in (labels, classifier))
    written = target_of(to, labels, images, features, classifier, encoder)
    saved = target_of(save, suffixes=(classification.FILE,), option="--save")
    if finetune and not (labels and images):
        raise ValueError("--finetune trains on --images with --labels; give both")
    if bool(labels) == bool(classifier) or bool(images) == bool(features):
        raise ValueError(
            "give either --labels (a table to train with) or --classifier (a file of --save), and either "
            "--images (files, folders, lists, tables) or --features (a file of `cl embed`)"
        )
    if used and saved:
        raise ValueError(f"--save {saved} needs --labels: --classifier {used} is saved already")
    before = None
    if saved and saved.exists():
        try:
            before = classifier_file.load(saved)
        except ValueError as error:
            raise ValueError(
                f"--save {saved} would overwrite another file than a classifier; choose another path"
            ) from error
    beside = classification.encoder_beside(Path(save)) if finetune and save else None
    tuned = target_of(beside, encoder, suffixes=(classification.FILE,), option="--save")
    if tuned and tuned.exists() and not (before and before.encoder.get("sha256") == opened(tuned).sha256):
        raise ValueError(
            f"--save {saved} would overwrite {tuned}, which is not its encoder; remove that or choose "
            "another path"
        )
    known = classifier_file.load(used) if used else None
    labelled = opened_table(table, columns, separator)
    if features:
        if encoder != ENCODER or prefix or resize or crop:
            raise ValueError(f"{features} has features already; leave out encoder, prefix, resize and crop")
        source = _from_file(Path(features).expanduser())
    else:
        source = _from_images(images, encoder, prefix, resize, crop, known)
    if finetune and source.encoder and source.encoder.config is None:
        raise ValueError(
            "--finetune cannot record this encoder, whose layers differ from those of its architecture; "
            "leave it out"
        )
    if known and used:
        answer = _classified(known, used, source)
    else:
        assert labelled
        answer, trained, better = _trained(labelled, source, finetune=finetune, ungrouped=ungrouped)
        if tuned and better:
            save_encoder(better, tuned)
            trained = replace(trained, encoder=trained.encoder | matching.origin_of(tuned, None))
        if saved:
            classifier_file.save(trained, saved)
        if tuned and not better:
            tuned.unlink(missing_ok=True)  # of the classifier that was replaced
    if written:
        classification.write(written, answer, every_class=every_class)
    return answer


@dataclass(frozen=True)
class _Source:
    """Where features come from."""

    names: list[str]  # of the images, from the folder `root`
    root: Path
    notes: dict[str, str]  # identify the encoder and the transform
    width: int
    features: Callable[..., Features]  # with an encoder, takes other options of `embed`
    encoder: Encoder | None = None


def _from_file(path: Path) -> _Source:
    embedded = matching.read(path)
    root, width = Path(embedded.notes.get("folder", "")), embedded.features.shape[1]
    return _Source(embedded.names, root, embedded.notes, width, lambda: embedded)


def _from_images(
    images: Any,
    given: Any,
    prefix: str | None,
    resize: int | None,
    crop: int | None,
    used: Classifier | None,
) -> _Source:
    inputs = existing(images)
    names = [name for name, _ in listing.images_in(inputs, Counter(), SUFFIXES | BAND_SUFFIXES)]
    if not names:
        raise ValueError(f"no images in {inputs[0]}; give images, a folder, a list or a table of images")
    given, prefix = matching.recorded(used.encoder if used else {}, given, prefix)
    encoder = copy.copy(opened(given, prefix))
    suffixes = listing.suffixes_for(encoder.transform)
    names = [name for name in names if not wrong_suffix(PurePath(name), suffixes)]
    if used and "transform" in used.encoder and not (encoder.records_size or resize or crop):
        trained = Transform.model_validate_json(used.encoder["transform"])
        resize, crop = trained.resize, trained.crop
    encoder.set_size(resize, crop)
    notes = matching.notes_of(encoder) | matching.origin_of(given, prefix)
    embedded = cast("Callable[..., Features]", partial(embed, inputs, encoder=encoder))
    return _Source(names, listing.root_of(inputs), notes, encoder.width, embedded, encoder)


def _classified(used: Classifier, file: Path, source: _Source) -> Classification:
    """The classes by a saved classifier."""
    matching.check_same_encoder(
        ("the features", file),
        (source.notes, used.encoder),
        (source.width, used.head.weights.shape[1]),
        "give the encoder and size that trained it, or train it again",
        progress("classify").say,
    )
    embedded = source.features()
    probabilities = used.head.probabilities(embedded.features)
    return likeliest(embedded.names, used.classes, probabilities, multilabel=used.head.multilabel)


def _trained(
    table: Labels, source: _Source, *, finetune: bool, ungrouped: bool
) -> tuple[Classification, Classifier, Encoder | None]:
    """The classes by a classifier that is trained on the labelled images, and the encoder if it is too."""
    labels, show = read_targets(table, source.names, source.root), progress("classify")
    show.say(*labels.remarks)
    known = labels.labelled()
    heads.folds_of(known.targets, known.classes, known.groups)  # refuses before the images are embedded
    embedded = source.features()
    labels = labels.of(embedded.names)
    known, labelled = labels.labelled(), labels.targets.any(1)
    rows, files = embedded.features[labelled], [source.root / name for name in known.names]
    if not ungrouped:
        names = np.array(joined(known.targets, known.classes))
        together, remarks = with_bursts(known.groups, [rows], files, names, known.grouped)
        show.say(*remarks)
        known = replace(known, groups=together)
    with show.count(len(rows), "labelled images") as report:
        trained = heads.train(
            rows, known.targets, known.classes, known.groups, multilabel=known.multilabel, report=report
        )
    comparison = better = None
    if finetune:
        assert source.encoder
        comparison, tuned = finetuned_if_better(source.encoder, files, rows, known, trained.head, show)
        if tuned:
            better, trained = tuned
            embedded = source.features(encoder=better)
    probabilities = trained.head.probabilities(embedded.features)
    probabilities[labelled] = trained.calibrated
    answer = replace(
        likeliest(embedded.names, labels.classes, probabilities, multilabel=labels.multilabel),
        labels=joined(labels.targets, labels.classes),
        quality=_quality(trained, known),
        finetuning=comparison,
    )
    notes = matching.notes_of(better) if better else source.notes
    notes = {name: notes[name] for name in ("sha256", "transform", "encoder", "prefix") if name in notes}
    return answer, Classifier(trained.head, labels.classes, notes), better


def _quality(trained: Trained, labels: Targets) -> Quality:
    """What held-out images measure."""
    targets, groups, multilabel = labels.targets, labels.groups, labels.multilabel
    counts = targets.sum(0)
    right, number = targets, float(len(np.unique(separated(groups, len(targets)))))
    accuracy = within = mean_precision = None
    if multilabel:
        by_class = heads.average_precisions(trained.calibrated, targets)
        mean_precision = float(by_class.mean())
    else:
        right = heads.percent_right(trained.calibrated, targets) / 100
        accuracy = 100 * float(right.mean())
        number = independent(right, groups)
        within = interval(accuracy, number / inflation(len(trained.folds)))
        by_class = 100 * right @ targets / counts
    error = heads.calibration_error(trained.calibrated, targets, multilabel=multilabel, independent=number)
    return Quality(
        images=len(targets),
        accuracy=accuracy,
        interval=within,
        majority=100 * float(counts.max()) / len(targets),
        mean_average_precision=mean_precision,
        by_class={
            name: (int(count), float(value))
            for name, count, value in zip(labels.classes, counts, by_class, strict=True)
        },
        largest_calibration_error=heads.largest_calibration_error(error, right, number),
    )
