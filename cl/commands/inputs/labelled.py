"""Labelled images with their features, and their division into training and validation images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cl.commands.inputs.feature_files import Features
from cl.commands.inputs.held_together import digests, held_together, with_bursts
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
    features: list[np.ndarray]  # (N, D) by each encoder
    pixels: np.ndarray  # (N, P), further columns
    labels: np.ndarray  # (N,)
    groups: np.ndarray  # (N,), "" for an image without a group
    together: np.ndarray  # (N,), equal numbers for images of a group or burst, and for copies

    def __len__(self) -> int:
        return len(self.names)

    def at(self, chosen: np.ndarray) -> "LabelledImages":
        """The images at these positions, or where a mask is true."""
        rows = np.arange(len(self))[chosen]
        arrays = self.pixels, self.labels, self.groups, self.together
        return LabelledImages(
            [self.names[row] for row in rows],
            [self.files[row] for row in rows],
            [features[rows] for features in self.features],
            *(array[rows] for array in arrays),
        )


def read(
    train: Inputs,
    val: Inputs | None,
    embedded: Callable[[list[Path]], Features | None],
    widths: Sequence[int],
    *,
    labels: Labels | None,
    holdout: float,
    ungrouped: bool,
    say: Callable[..., object],
) -> tuple[LabelledImages, LabelledImages, int]:
    """The labelled training and validation images; how many of `val` were left out as copies of the former.

    Args:
        train, val: files, folders, lists and tables; without `val`, the share `holdout` of `train`.
        embedded: gives the features of some of these by each encoder, side by side, and further columns.
        widths: the number of features of each encoder.
        labels: a table of labels; by default they are in the given tables, or are names of folders.
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
    sides = [train] if val is None else [train, val]
    found, is_val, is_copy = _labelled(sides, labels, embedded, widths, say, ungrouped=ungrouped)
    if val is None:
        is_val = _held_out(found, holdout)
    bank, queries = found.at(~is_val), found.at(is_val & ~is_copy)
    say(*(labels.remarks() if labels else []))
    if len({*bank.labels}) == 1:
        raise ValueError(
            f"all training images are of the class {str(bank.labels[0])!r}, expected at least two classes; "
            "give others too"
        )
    if not len(queries):
        raise ValueError(
            f"all validation images ({is_val.sum()}) are also training images; give others with val"
        )
    say(*_remarks(bank, queries))
    return bank, queries, int(is_copy.sum())


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
    sides: list[Inputs],
    table: Labels | None,
    embedded: Callable[[list[Path]], Features | None],
    widths: Sequence[int],
    say: Callable[..., object],
    *,
    ungrouped: bool,
) -> tuple[LabelledImages, np.ndarray, np.ndarray]:
    """The labelled images of each side, at least one; which are of the last side, and copies of the first."""
    names, files, features, known, first = [], [], [], list[tuple[str, str]](), 0
    for images in sides:
        inputs, first, total = existing(images), len(known), 0
        for given in with_one_root(inputs):
            part, root = embedded(given), root_of(given)
            assert part is not None
            own = table or labels_in(given[0], say)
            of_part = classes(given[0], part.names, own)
            say(*(own.ignored() if own and not table else []))
            rows = [row for row, (label, _) in enumerate(of_part) if label]
            names += [part.names[row] for row in rows]
            files += [root / part.names[row] for row in rows]
            known += [of_part[row] for row in rows]
            features.append(part.features[rows])
            total += len(of_part)
        if len(known) == first:
            these = f"{counted(total, 'images')} in {', '.join(map(str, inputs))}"
            if table:
                raise table.none_of(these)
            raise ValueError(
                f"none of the {these} has a label; put the images of each class into a folder, or give a "
                "table with the columns path and label"
            )
        if unlabelled := first + total - len(known):
            say(f"left out {counted(unlabelled, 'images')} without a label")
    labels, groups = np.array(known).T
    *by_encoder, pixels = np.split(np.concatenate(features), np.cumsum(widths), axis=1)
    of_files = digests(files)
    together, remarks = held_together(groups, of_files)
    say(*remarks)
    if not ungrouped:
        together, remarks = with_bursts(together, by_encoder, files, labels, groups != "")
        say(*remarks)
    found = LabelledImages(names, files, by_encoder, pixels, labels, groups, together)
    copy, original = copies(of_files).T
    is_copy = np.zeros(len(found), bool)
    is_copy[copy[(original < first) & (copy >= first)]] = True
    return found, np.arange(len(found)) >= first, is_copy


def _held_out(images: LabelledImages, share: float) -> np.ndarray:
    """(N,): whether images are held out, by a hash of names or groups; what belongs together stays together.

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
    return held
