"""Images whose files have equal bytes: found by their hashes, listed, or left out."""

import csv
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from cl.runtime.files import UNREACHABLE
from cl.shards.survey import survey
from cl.shards.team import Team
from cl.sources import UNLABELLED, Image, Splits
from cl.sources._shared.listing import Subset

UNREAD = bytes(16)  # the digest of an image that could not be read; never counted as a copy


def digest(content: bytes) -> bytes:
    """16 bytes, different for different contents."""
    return hashlib.sha256(content).digest()[:16]


def as_array(digests: list[bytes]) -> np.ndarray:
    """(n, 2) uint64."""
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)


def copies(digests: np.ndarray, unlabelled: np.ndarray | None = None) -> np.ndarray:
    """(m, 2): the positions of each copy and of the first image with its content, sorted.

    Args:
        digests: (n, 2).
        unlabelled: (n,) bool; where one is labelled, the first labelled image with a content is its original.
    """
    later = np.zeros(len(digests), bool) if unlabelled is None else unlabelled
    order = np.lexsort((later, digests[:, 1], digests[:, 0]))  # stable: equal digests keep their order
    ordered = digests[order]
    repeats = np.zeros(len(order), bool)
    repeats[1:] = (ordered[1:] == ordered[:-1]).all(1)
    first = order[np.maximum.accumulate(np.where(repeats, 0, np.arange(len(order))))]
    repeats &= ordered.any(1)
    found = np.stack([order[repeats], first[repeats]], axis=1)
    return found[found[:, 0].argsort()]


def superfluous(splits: Splits, team: Team) -> np.ndarray:
    """(m, 2): as `copies`; labelled images are kept before others, then training before validation."""
    listed = (splits.train, splits.val)
    digests = [digest for part in listed for digest in survey(part, _digest_of, "files to compare", team)]
    return copies(
        as_array(digests), np.array([image.label == UNLABELLED for part in listed for image in part])
    )


def _digest_of(image: Image) -> bytes:
    try:
        return digest(image.read())
    except OSError as error:
        if error.errno not in UNREACHABLE:
            raise
        return UNREAD  # reported when the image is packed


def without(splits: Splits, pairs: np.ndarray) -> Splits:
    """Leave out the copies of `superfluous`.

    Raises:
        ValueError: a split or a class would be lost.
    """
    kept = np.delete(np.arange(len(splits.train) + len(splits.val)), pairs[:, 0])
    first = len(splits.train)  # of the validation images
    train, val = Subset(splits.train, kept[kept < first]), Subset(splits.val, kept[kept >= first] - first)
    rest = replace(splits, train=train, val=val)
    _check_nothing_is_lost(splits, rest)
    return rest


def _check_nothing_is_lost(before: Splits, after: Splits) -> None:
    if lost := sorted(_necessities(before) - _necessities(after)):
        raise ValueError(
            f"every {lost[0]} is a copy of an image that is kept; hold out others, give equal images one "
            "label, or choose dataset.deduplicate=false"
        )


def _necessities(splits: Splits) -> set[str]:
    """What a data set may not lose: a split, a class, or the labels in validation."""
    found = {f"{name} image" for name in ("train", "val") if getattr(splits, name)}
    labels = {image.label for image in splits.train} - {UNLABELLED}
    found |= {f"train image of class {splits.classes[label]}" for label in labels}
    return found | {"labelled val image" for image in splits.val if image.label != UNLABELLED}


def write_list(splits: Splits, pairs: np.ndarray, path: Path) -> dict[str, int]:
    """List copies and the images that they equal in a CSV file if there are any, and count them.

    Args:
        splits: with the copies.
        pairs: of `copies`, for the training and then the validation images.

    Returns:
        The number of copies, and how many of them are in another split or have another label than the first.
    """
    if not len(pairs):
        return {}
    train = len(splits.train)

    def of(position: int) -> tuple[Image, str]:
        """An image and its split."""
        if position < train:
            return splits.train[position], "train"
        return splits.val[position - train], "val"

    found = [(*of(copy), *of(first)) for copy, first in pairs.tolist()]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["key", "split", "same_as", "same_as_split"])
        for copy, split, first, its_split in found:
            writer.writerow([copy.key, split, first.key, its_split])
    return {
        "copies": len(found),
        "in_other_split": sum(split != its_split for _, split, _, its_split in found),
        "with_other_label": sum(copy.label != first.label for copy, _, first, _ in found),
    }
