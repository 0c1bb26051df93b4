"""advise: which encoder to start from, and whether training it on one's own images is worth it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from cl.commands.classifiers import heads
from cl.commands.inputs import sample
from cl.commands.inputs.held_together import digests, held_together, with_bursts
from cl.commands.inputs.labels import opened_table
from cl.commands.inputs.sample import Sample
from cl.commands.jobs import near_duplicates, starts, trial
from cl.commands.jobs.starts import Start
from cl.commands.outputs.advice import FEW, HOLDOUT, Advice, Tried, advice, for_training, labels_of
from cl.commands.paths import File, target_of
from cl.console.command import progress
from cl.console.progress import Progress
from cl.console.wording import counted
from cl.features.correctness import check_different, correctness
from cl.pretraining.adaptation import verdict
from cl.runtime.tables import write_table


def advise(
    folder: File,
    *,
    encoders: Sequence[File] = (),
    labels: File | None = None,
    columns: Mapping[str, str] | None = None,
    separator: str | None = None,
    ungrouped: bool = False,
    minutes: float = 3.0,
    to: File | None = None,
) -> Advice:
    """Look at images, measure the encoders at hand on them, and try whether training one further helps.

    With labels, encoders are compared by kNN and logistic regression, cross-validated; the best one is then
    trained as `recipe=own/adapt` trains, and judged by the same rule, on images of other groups. Without
    labels, nothing is trained: no measure would show whether it helped.

    Args:
        folder: of at least 20 images. Folders in it are classes, below train/ and val/ if both are there. Of
            more than 1,000 images, 1,000 are looked at.
        encoders: files or names that `cl.load` takes; none: models/backbone.safetensors, and what torchvision
            and timm have downloaded before.
        labels, columns, separator: as in `evaluate`.
        ungrouped: each image stands alone; otherwise bursts are held out together.
        minutes: of training, about, as three timed steps predict; 0: none.
        to: a .csv or .parquet file to write, with the columns path, label, group and useful others, for
            `dataset.table`.

    Raises:
        ValueError: there are too few images, they are all equal, a table labels none of them, or an encoder
            cannot be loaded.
    """
    target, show = target_of(to, labels, encoders), progress("advise")
    table = opened_table(labels, columns, separator)
    images = sample.read(Path(folder).expanduser(), table)
    if target and not any(label for label, _ in images.listed.values()):
        raise ValueError(f"no image in {folder} has a label that could be written; leave out --to")
    measured = [starts.embedded(*start, images.files) for start in starts.find(encoders, show.say)]
    for start in measured:
        check_different(torch.from_numpy(start.features), start.title)
    features = [start.features for start in measured[:-1] or measured]  # pixels only if there is nothing else
    together, remarks = held_together(images.groups, digests(images.files))
    if not ungrouped:
        grouped = images.groups != ""
        together, bursts = with_bursts(together, features, images.files, images.labels, grouped)
        remarks += bursts
    judging, labelling = _measure(measured, images, together)
    measured.sort(key=lambda start: (start.name == starts.PIXELS, -start.score))
    pixels = measured[-1]
    pairs = near_duplicates.find(pixels.features, images.files, pixels.encoder, show.count)[1]
    remarks.append(f"near copies of others: {counted(len(np.unique(pairs.positions)), 'images')}")
    hints, useful = starts.useful_columns(table, images, together, measured[0])
    remarks += [*(table.remarks() if table else []), *hints]
    trials = []
    if len(judging) and measured[0].encoder.config and len(images.listed) >= FEW and minutes:
        trials = _trials(measured[0], images, together, judging, minutes, show)
    if target:
        write_table(target, labels_of(images, useful))
    named = for_training(images, table, target, has_labels=len(judging) > 0, ungrouped=ungrouped)
    return advice(len(images.listed), [_about(images), labelling, *remarks], measured, trials, named)


def _measure(found: list[Start], images: Sample, together: np.ndarray) -> tuple[np.ndarray, str]:
    """Measure the starts; the positions of the labelled images if these judge them, and a sentence.

    A class of one image or group cannot be both learnt and asked for, so it is left out.
    """
    pairs = {*zip(images.labels.tolist(), together.tolist(), strict=True)}
    groups_of = Counter(label for label, _ in pairs if label)
    several = [label for label, number in groups_of.items() if number > 1]
    judged = several if len(several) > 1 else [*groups_of]
    known = np.flatnonzero(np.isin(images.labels, judged))
    labels, groups = images.labels[known], together[known]
    try:
        folds = starts.folds(labels, groups, heads.FOLDS) if len(known) else []
        tables = sorted(file for kind in ("*.csv", "*.parquet") for file in images.folder.glob(kind))
        sentence = f"labels: none; is {tables[0]} their table? (--labels)" if tables else "labels: none"
    except ValueError as error:
        folds, sentence = [], f"labels cannot judge: {error}"
    for start in found:
        if folds:
            start.measures = starts.by_labels(start.features[known], labels, groups, folds)
        else:
            start.measures = starts.by_neighbours(start, images.pixels)
    if not folds:
        return known[:0], sentence
    counts = np.unique(labels, return_counts=True)[1]
    each = counted(counts.max(), "images")
    if counts.min() < counts.max():
        each = f"{counts.min()} to {each}"
    independent = counted(len(np.unique(groups)), "independent groups")
    left = len(groups_of) - len(judged)
    others = f"; classes of one image or group, left out: {left}" if left else ""
    return known, f"labels: {len(counts)} classes with {each}, {independent}{others}"


def _about(images: Sample) -> str:
    total = f" of {len(images.listed)}" if len(images.listed) > len(images) + len(images.unreadable) else ""
    first = f" ({images.unreadable[0]})" if images.unreadable else ""
    gray = np.mean([(each == each[..., :1]).all() for each in images.pixels])
    return (
        f"{images.folder}: {counted(len(images), 'images')}{total}, {100 * gray:.0f} % of them gray, median "
        f"short side {np.median(images.sides):.0f} px; unreadable: {len(images.unreadable)}{first}"
    )


def _trials(
    start: Start, images: Sample, together: np.ndarray, judging: np.ndarray, minutes: float, show: Progress
) -> list[Tried]:
    """Adaptations of the start, until one is better on images that it has not seen."""
    try:
        held, rest = parts(images, together, judging)
    except ValueError as error:  # three parts may be impossible where five are not
        show.say(f"nothing is trained: {error}")
        return []
    seen, labels, trials = np.intersect1d(rest, judging), images.labels, list[Tried]()
    optimizers = trial.optimizers(start.encoder)
    full = len(optimizers) * trial.recipe_steps(len(rest) * len(images.listed) // len(images))
    show.say(f"training for at most about {minutes:g} minutes on {counted(len(rest), 'images')}")
    for optimizer in optimizers:
        pixels = [images.pixels[row] for row in rest]
        share = 60 * minutes / len(optimizers)
        encoder, steps, seconds = trial.adapted(start.encoder, pixels, optimizer, share, show)
        after = starts.embedded(start.name, encoder, images.files).features
        pairs = [(start.features[rows], after[rows]) for rows in (seen, held)]
        scores = correctness(pairs[0], labels[seen], pairs[1], labels[held])
        outcome = verdict(scores, labels[held].tolist(), together[held], seed=0)
        assert outcome.comparison
        trials.append(Tried(optimizer.base_lr, steps, full, seconds, outcome.comparison, outcome.is_better))
        if outcome.is_better:
            break
    return trials


def parts(images: Sample, together: np.ndarray, judging: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The positions of the images that judge a trial, of those at `judging`, and of those that it trains on.

    The first are below val/, or else a third; whole groups. No image of their groups is trained on.
    """
    held = judging[images.is_val[judging]]
    if not len(held):
        held = judging[starts.folds(images.labels[judging], together[judging], round(1 / HOLDOUT))[0][1]]
    return held, np.flatnonzero(~np.isin(together, together[held]))
