"""duplicates: groups of images that are copies of each other."""

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from cl.commands.defaults import ENCODER
from cl.commands.inputs import matching
from cl.commands.jobs import near_duplicates
from cl.commands.jobs.near_duplicates import Calibration, Pairs
from cl.commands.outputs import pictures
from cl.commands.paths import PAGE_OR_TABLE, File, Inputs, as_paths, target_of
from cl.console.command import progress
from cl.encoders.encoder import Encoder
from cl.features.copies import groups
from cl.runtime.tables import columns_of, write_table

DIGITS = 4  # of cosines and agreements


@dataclass(frozen=True)
class Copy:
    """An image of a group of copies, and the most similar other image of the group that it was compared with.

    group: numbered from 1.
    split, same_as_split: the name of the features' file without its suffix; its path if both names are equal.
    cosine: of their features.
    agreement: of their pixels, see `cl.features.copies.correlations`.
    """

    group: int
    name: str
    split: str
    same_as: str
    same_as_split: str
    cosine: float
    agreement: float


def duplicates(
    features: Inputs,
    *,
    images: File | None = None,
    encoder: File | Encoder = ENCODER,
    to: File | None = None,
    prefix: str | None = None,
) -> list[Copy]:
    """Groups of images that differ only in size, compression, a small crop, mirroring or brightness.

    The thresholds come from copies made of a sample of the images. They are printed with their recall and
    their false positives.

    Args:
        features: a file of `cl embed`, or two, of training and validation images, searched together.
        images: the folder that the names in the files start from; default: the folder that each file records,
            or else the current one.
        encoder: what gave the features; a file or name that `cl.load` takes, or what it returned.
        to: a file to write: .html with the pictures, or .csv or .parquet with the fields of `Copy`.
        prefix: which encoder to use if the file contains several.

    Returns:
        The copies, by group.

    Raises:
        ValueError: a file is missing or damaged, or features came from another encoder or are not finite.
    """
    files, target = as_paths(features), target_of(to, features, encoder, suffixes=PAGE_OR_TABLE)
    if len({path.resolve() for path in files}) < len(files) or len(files) not in (1, 2):
        given = ", ".join(map(str, files)) or "no files"
        raise ValueError(f"found {given}; give one file of features, or those of training and validation")
    parts = [matching.read(path) for path in files]
    show = progress("duplicates")
    matching.check_same_features(parts[0], parts[-1], (files[0], files[-1]), show.say)
    stems = [path.stem for path in files]
    splits = stems if len({*stems}) == len(files) else [str(path) for path in files]
    named = [(name, split) for split, part in zip(splits, parts, strict=True) for name in part.names]
    roots = [Path(images or part.notes.get("folder", "")).expanduser() for part in parts]
    paths = [root / name for root, part in zip(roots, parts, strict=True) for name in part.names]
    if len(paths) < 2:
        raise ValueError(f"{files[0]} has features of 1 image, which cannot have copies; embed more images")
    rows = np.concatenate([part.features for part in parts]) if len(parts) > 1 else parts[0].features
    loaded = matching.encoder_of(parts[0], files[0], encoder, prefix, show.say)
    if loaded.transform.bands:
        raise ValueError(
            f"{files[0]} has features of bands, but near copies are found by changed pictures in RGB; "
            "embed pictures with an encoder for RGB, or find images of a cosine near 1: `cl search`"
        )
    try:
        calibration, pairs = near_duplicates.find(rows, paths, loaded, show.count)
    except FileNotFoundError as error:
        raise ValueError(
            f"no image {error.filename}, which is in the features; give the folder that the names start from "
            "with --images"
        ) from error
    show.say(*_calibrated(calibration))
    copies = _copies(named, pairs)
    is_train = pairs.positions < len(parts[0].names)
    if shared := len(np.unique(pairs.positions[is_train[:, 0] & ~is_train[:, 1], 1])):
        show.say(
            f"warning: {files[1]} has copies of images in {files[0]} ({shared}): results on them are too "
            "good, so leave them out of one of the two"
        )
    if target and target.suffix == ".html":
        about = "A row is a group of copies, with the cosine to the most similar other image of the group."
        place = dict(zip(named, paths, strict=True))
        shown = (
            [(place[copy.name, copy.split], f"{copy.cosine:.3f} {copy.split} {copy.name}") for copy in group]
            for _, group in groupby(copies, lambda copy: copy.group)
        )
        pictures.write(target, "Copies", about, shown, loaded.transform.decoded)
    elif target:
        columns = columns_of(Copy, copies)
        if len(parts) == 1:
            del columns["split"], columns["same_as_split"]
        write_table(target, columns)
    return copies


def _calibrated(calibration: Calibration) -> list[str]:
    """Lines about the thresholds, their recall, and their false positives."""
    thresholds = (
        f"thresholds: cosine {calibration.cosine:.3f}, agreement of pixels {calibration.agreement:.3f}"
    )
    if not calibration.copies:
        return [f"{thresholds}; the sampled images are equal, so how many copies these find is unknown"]
    recall = ", ".join(
        f"{kind.replace('_', ' ')} {100 * share:.0f} %" for kind, share in calibration.recall.items()
    )
    mean = sum(calibration.recall.values()) / len(calibration.recall)
    share = calibration.false_agreements / max(1, calibration.different)
    return [
        thresholds,
        f"found {100 * mean:.1f} % of {calibration.copies * len(calibration.recall)} made copies ({recall})",
        f"false positives by the agreement of pixels: {calibration.false_agreements} of "
        f"{calibration.different} pairs of different images, {100 * share:.2g} %",
    ]


def _copies(named: list[tuple[str, str]], pairs: Pairs) -> list[Copy]:
    """The copies among images with these names and splits."""
    best: dict[int, tuple[float, float, int]] = {}
    columns = zip(pairs.positions.tolist(), pairs.cosines.tolist(), pairs.agreements.tolist(), strict=True)
    for (first, second), cosine, agreement in columns:
        for image, other in ((first, second), (second, first)):
            best[image] = max(best.get(image, (-np.inf, 0.0, 0)), (cosine, agreement, -other))
    group = groups(len(named), pairs.positions).tolist()
    number: dict[int, int] = {}
    copies = []
    for image, (cosine, agreement, other) in sorted(best.items()):
        label = number.setdefault(group[image], len(number) + 1)
        values = round(cosine, DIGITS), round(agreement, DIGITS)
        copies.append(Copy(label, *named[image], *named[-other], *values))
    return sorted(copies, key=lambda copy: copy.group)
