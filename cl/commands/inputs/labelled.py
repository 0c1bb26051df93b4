"""Labelled images with their features, and their division into training and validation images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cl.commands.inputs.feature_files import Features
from cl.commands.inputs.held_together import digests, held_together
from cl.commands.inputs.labels import Labels, check_classes, classes, labels_in
from cl.commands.inputs.listing import is_folder, root_of, with_one_root
from cl.commands.paths import Inputs, existing
from cl.console.wording import counted
from cl.images.holdout import held_out, last_of_classes, number_of, share_of_few
from cl.images.table import alike, similar
from cl.shards.duplicates import copies


@dataclass(frozen=True)
class LabelledImages:
    """N images with a label."""

    names: list[str]  # as `cl embed` gives them
    files: list[Path]
    features: np.ndarray  # (N, D)
    labels: np.ndarray  # (N,)
    groups: np.ndarray  # (N,), "" for an image without a group
    digests: np.ndarray  # (N, 2), hashes of the files
    together: np.ndarray  # (N,), equal numbers for images of a group or burst, and for copies

    def __len__(self) -> int:
        return len(self.names)

    def at(self, chosen: np.ndarray) -> "LabelledImages":
        """The images at these positions, or where a mask is true."""
        positions = np.arange(len(self))[chosen]
        chosen_of: Any = (
            x[positions] if isinstance(x, np.ndarray) else [x[i] for i in positions]
            for x in vars(self).values()
        )
        return LabelledImages(*chosen_of)


def read(
    train: Inputs,
    val: Inputs | None,
    embedded: Callable[[list[Path]], Features | None],
    *,
    labels: Labels | None,
    holdout: float,
    ungrouped: bool,
    say: Callable[..., object],
    by_encoder: Callable[[np.ndarray], Sequence[np.ndarray]],
) -> tuple[LabelledImages, LabelledImages, int]:
    """The labelled training and validation images; how many of `val` were left out as copies of the former.

    Args:
        train, val: files, folders, lists and tables; without `val`, the share `holdout` of `train`.
        embedded: gives the features of some of these.
        labels: a table of labels; by default they are in the given tables, or are names of folders.
        by_encoder: features (N, D) to those of each encoder, by which bursts are found.
        say: is told which images and which rows of the table are left out, and which classes cannot be found.

    Raises:
        ValueError: a side has no labelled image, all training images are of one class, all of `val` are
            training images, the folders of an input are splits, or `holdout` is not a share.
    """
    if not 0 < holdout < 1:
        raise ValueError(f"holdout={holdout}, expected a share between 0 and 1")
    for images in (train, val):
        for given in filter(is_folder, [] if labels or images is None else existing(images)):
            check_classes(given, "give for example --train {} --val {}")
    sides = [_labelled(images, labels, embedded, say) for images in (train, val) if images is not None]
    sides, remarks = _together(sides, by_encoder, ungrouped=ungrouped)
    say(*remarks)
    bank, queries = sides if len(sides) > 1 else _split(sides[0], holdout)
    say(*(labels.remarks() if labels else []))
    if len({*bank.labels}) == 1:
        raise ValueError(
            f"all training images are of the class {str(bank.labels[0])!r}, expected at least two classes; "
            "give others too"
        )
    copy, original = copies(np.concatenate([bank.digests, queries.digests])).T
    of_training = copy[original < len(bank)] - len(bank)  # negative: a copy within training
    new = queries.at(~np.isin(np.arange(len(queries)), of_training))
    if not len(new):
        raise ValueError(
            f"all validation images ({len(queries)}) are also training images; give others with val"
        )
    say(*_remarks(bank, new))
    return bank, new, len(queries) - len(new)


def _remarks(bank: LabelledImages, queries: LabelledImages) -> Iterator[str]:
    """What makes the results of these validation images too good, or some of them impossible."""
    if shared := int(np.isin(queries.together, bank.together).sum()):
        yield (
            f"warning: validation images in a burst or group with training images: {shared}; results will be "
            "too good; hold out whole ones"
        )
    known = {*bank.labels.tolist()}
    yield from similar(sorted(known.union(queries.labels.tolist())))
    yield from alike(sorted({*bank.groups.tolist(), *queries.groups.tolist()}), "groups")
    if unknown := [label for label in queries.labels.tolist() if label not in known]:
        such = f"classes without a training image, such as {unknown[0]}"
        yield f"validation images of {such}, which count as errors: {len(unknown)}"


def _labelled(
    images: Inputs,
    table: Labels | None,
    embedded: Callable[[list[Path]], Features | None],
    say: Callable[..., object],
) -> LabelledImages:
    """The images of inputs that have a label; at least one."""
    inputs = existing(images)
    names, files, features, known = [], [], [], []
    for given in with_one_root(inputs):
        part, root = embedded(given), root_of(given)
        assert part is not None
        names += part.names
        files += [root / name for name in part.names]
        features.append(part.features)
        own = table or labels_in(given[0], say)
        known += classes(given[0], part.names, own)
        say(*(own.ignored() if own and not table else []))
    labels, groups = np.array(known, str).reshape(-1, 2).T
    labelled = labels != ""
    if not labelled.any():
        these = f"{counted(len(known), 'images')} in {', '.join(map(str, inputs))}"
        if table:
            raise table.none_of(these)
        raise ValueError(
            f"none of the {these} has a label; put the images of each class into a folder, or give a table "
            "with the columns path and label"
        )
    if unlabelled := int((~labelled).sum()):
        say(f"left out {counted(unlabelled, 'images')} without a label")
    unknown = np.zeros((len(names), 2), np.uint64), np.arange(len(names))
    found = LabelledImages(names, files, np.concatenate(features), labels, groups, *unknown).at(labelled)
    return replace(found, digests=digests(found.files))


def _together(
    sides: Sequence[LabelledImages],
    by_encoder: Callable[[np.ndarray], Sequence[np.ndarray]],
    *,
    ungrouped: bool,
) -> tuple[list[LabelledImages], list[str]]:
    """The sides, with equal numbers for images that belong together; remarks. Given groups replace bursts."""
    groups, of_files, labels, rows = (
        np.concatenate([getattr(side, name) for side in sides])
        for name in ("groups", "digests", "labels", "features")
    )
    files = [file for side in sides for file in side.files]
    together, remarks = held_together(groups, of_files, [] if ungrouped else by_encoder(rows), files, labels)
    parts = np.split(together, np.cumsum([len(side) for side in sides])[:-1])
    return [replace(side, together=part) for side, part in zip(sides, parts, strict=True)], remarks


def _split(images: LabelledImages, share: float) -> tuple[LabelledImages, LabelledImages]:
    """Training images and held-out ones, by a hash of names or groups; what belongs together stays together.

    Each class keeps for training what would be held out last.
    """
    firsts = np.unique(images.together, return_index=True)[1][images.together]
    keys = [str(images.groups[first]) or images.names[first] for first in firsts]
    share = share_of_few(set(keys), share)
    kept = last_of_classes(
        (label, number_of(key), key) for label, key in zip(images.labels, keys, strict=True)
    )
    held = np.array([key not in kept and held_out(key, share) for key in keys])
    if held.all() or not held.any():
        raise ValueError(
            f"holdout={share} of {counted(len(held), 'images')} ({len({*keys})} independent) leaves "
            f"{(~held).sum()} training and {held.sum()} validation images, expected at least one of each; "
            "give other images with val"
        )
    return images.at(~held), images.at(held)
