"""Images whose files have equal bytes: found by their hashes, listed, or left out."""

import csv
import hashlib
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np

from cl.sources import Image, Splits

UNREAD = bytes(16)  # the digest of an image that could not be read; never counted as a copy


def digest(content: bytes) -> bytes:
    """16 bytes, different for different contents."""
    return hashlib.sha256(content).digest()[:16]


def as_array(digests: list[bytes]) -> np.ndarray:
    """(n, 2) uint64."""
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)


def copies(digests: np.ndarray) -> np.ndarray:
    """(m, 2): the positions of each copy and of the first image with its content, sorted; digests: (n, 2)."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: equal digests keep their order
    ordered = digests[order]
    repeats = np.zeros(len(order), bool)
    repeats[1:] = (ordered[1:] == ordered[:-1]).all(1)
    first = order[np.maximum.accumulate(np.where(repeats, 0, np.arange(len(order))))]
    repeats &= ordered.any(1)
    found = np.stack([order[repeats], first[repeats]], axis=1)
    return found[found[:, 0].argsort()]


def without_copies(splits: Splits, workers: int) -> tuple[Splits, int]:
    """Keep the first image of each content, training before validation, and count the others.

    Raises:
        ValueError: no validation image is left.
    """
    listed = [*splits.train, *splits.val]
    with ThreadPool(workers) as pool:
        digests = as_array(list(pool.imap(_digest_of, listed, chunksize=64)))
    kept = np.ones(len(listed), bool)
    kept[copies(digests)[:, 0]] = False
    train, val = (
        [image for image, keep in zip(images, part, strict=True) if keep]
        for images, part in zip((splits.train, splits.val), np.split(kept, [len(splits.train)]), strict=True)
    )
    if not val:
        raise ValueError(
            "every validation image is a copy of a training image; hold out others, or choose "
            "dataset.deduplicate=false"
        )
    return replace(splits, train=train, val=val), int((~kept).sum())


def _digest_of(image: Image) -> bytes:
    try:
        return digest(image.read())
    except FileNotFoundError:  # reported when the image is packed
        return UNREAD


def write_list(splits: Splits, digests: np.ndarray, path: Path) -> dict[str, int]:
    """List the copies in a CSV file if there are any, and count them; digests: of training and validation.

    Returns:
        The number of copies, and how many of them are in another split or have another label than the first.
    """
    pairs = copies(digests).tolist()
    if not pairs:
        return {}
    listed, train = [*splits.train, *splits.val], len(splits.train)
    names = ["val" if position >= train else "train" for position in range(len(listed))]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["key", "split", "same_as", "same_as_split"])
        for copy, first in pairs:
            writer.writerow([listed[copy].key, names[copy], listed[first].key, names[first]])
    return {
        "copies": len(pairs),
        "in_other_split": sum(names[copy] != names[first] for copy, first in pairs),
        "with_other_label": sum(listed[copy].label != listed[first].label for copy, first in pairs),
    }
