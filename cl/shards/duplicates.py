"""Copies: images whose files have equal bytes, found by hashes, listed and left out."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from cl.images.image import UNLABELLED, Image, Splits
from cl.images.listing import Subset
from cl.runtime.files import UNREACHABLE
from cl.runtime.tables import write_csv
from cl.shards.survey import Team, survey

UNREAD = bytes(16)  # the digest of an unreadable image, which never counts as a copy


def digest(content: bytes) -> bytes:
    """A 16-byte hash."""
    return hashlib.sha256(content).digest()[:16]


def as_array(digests: list[bytes]) -> np.ndarray:
    """Digests as (n, 2) uint64."""
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)


def copies(digests: np.ndarray, unlabelled: np.ndarray | None = None) -> np.ndarray:
    """(m, 2): the positions of each copy and of its original, the first image with equal bytes; sorted.

    Args:
        digests: (n, 2) uint64.
        unlabelled: (n,) bool; a labelled image is preferred as the original.
    """
    later = np.zeros(len(digests), bool) if unlabelled is None else unlabelled
    order = np.lexsort((later, digests[:, 1], digests[:, 0]))  # stable: equal digests keep their order
    ordered = digests[order]
    repeats = np.zeros(len(order), bool)
    repeats[1:] = (ordered[1:] == ordered[:-1]).all(1)
    original = order[np.maximum.accumulate(np.where(repeats, 0, np.arange(len(order))))]
    repeats &= ordered.any(1)  # UNREAD is zero
    pairs = np.stack([order[repeats], original[repeats]], axis=1)
    return pairs[pairs[:, 0].argsort()]


def superfluous(splits: Splits, team: Team) -> np.ndarray:
    """(m, 2): as `copies`; keeps labelled images rather than others, then training rather than validation."""
    listed = (splits.train, splits.val)
    digests: list[bytes] = []
    for images in listed:
        digests += survey(images, lambda image: digest_of(image.read), "files to compare", team)
    unlabelled = np.array([image.label == UNLABELLED for images in listed for image in images])
    return copies(as_array(digests), unlabelled)


def digest_of(read: Callable[[], bytes]) -> bytes:
    """The digest of what `read` returns; `UNREAD` for a missing or closed file."""
    try:
        return digest(read())
    except OSError as error:
        if error.errno not in UNREACHABLE:
            raise
        return UNREAD


def without(splits: Splits, pairs: np.ndarray) -> Splits:
    """Leave out the copies of `superfluous`; raises ValueError if a split or a class would be lost."""
    kept = np.delete(np.arange(len(splits.train) + len(splits.val)), pairs[:, 0])
    first_val = len(splits.train)
    train = Subset(splits.train, kept[kept < first_val])
    val = Subset(splits.val, kept[kept >= first_val] - first_val)
    rest = replace(splits, train=train, val=val)
    if lost := sorted(_necessities(splits) - _necessities(rest)):
        raise ValueError(
            f"every {lost[0]} is a copy of a kept image; hold out other images, give equal images one label, "
            "or choose dataset.deduplicate=false"
        )
    return rest


def _necessities(splits: Splits) -> set[str]:
    """What deduplication must not lose: a split, a class, or the labels in validation."""
    needed = {f"{name} image" for name in ("train", "val") if getattr(splits, name)}
    labels = {image.label for image in splits.train} - {UNLABELLED}
    needed |= {f"train image of class {splits.classes[label]}" for label in labels}
    return needed | {"labelled val image" for image in splits.val if image.label != UNLABELLED}


def write_list(splits: Splits, pairs: np.ndarray, path: Path) -> dict[str, int]:
    """Write a CSV file of the copies and their originals if there are copies, and count them.

    Args:
        splits: with the copies.
        pairs: from `copies` of the training images followed by the validation images.

    Returns:
        The number of copies, and how many have another split or another label than their original.
    """
    if not len(pairs):
        return {}

    def with_split(position: int) -> tuple[Image, str]:
        if position < len(splits.train):
            return splits.train[position], "train"
        return splits.val[position - len(splits.train)], "val"

    rows = [(*with_split(copy), *with_split(original)) for copy, original in pairs.tolist()]
    listed = ((copy.key, split, first.key, its_split) for copy, split, first, its_split in rows)
    write_csv(path, ["key", "split", "same_as", "same_as_split"], listed)
    return {
        "copies": len(rows),
        "in_other_split": sum(split != other for _, split, _, other in rows),
        "with_other_label": sum(
            UNLABELLED != copy.label != original.label != UNLABELLED for copy, _, original, _ in rows
        ),
    }
