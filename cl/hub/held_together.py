"""Images that are held out together: those of a group, and those with equal files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cl.console.wording import counted
from cl.features.copies import groups
from cl.shards.duplicates import UNREAD, as_array, copies, digest, digest_of


def digests(files: Sequence[Path]) -> np.ndarray:
    """(N, 2) uint64: hashes of the files' bytes; `UNREAD` for a missing or closed file."""
    return as_array([digest_of(file.read_bytes) for file in files])


def held_together(names: Sequence[str], files: Sequence[Path]) -> tuple[np.ndarray, list[str]]:
    """A number for each image, equal if a group or equal files connect them; a remark if files are equal.

    Args:
        names: of the groups of N images, "" for an image without one.
        files: of the images; one that is missing, as beside features, has no copy.
    """
    of_groups = as_array([digest(name.encode()) if name else UNREAD for name in names])
    pairs = [copies(each) for each in (of_groups, digests(files))]
    remark = f"held out together with an equal file: {counted(len(pairs[1]), 'images')}"
    return groups(len(files), np.concatenate(pairs)), [remark] if len(pairs[1]) else []
