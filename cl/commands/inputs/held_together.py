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
    """A number for each image, equal if a group or equal files connect them; remarks on the files.

    Args:
        names: of the groups of N images, "" for an image without one.
        files: of the images; one that is missing, as beside features, has no copy.
    """
    of_groups = as_array([digest(name.encode()) if name else UNREAD for name in names])
    of_files = digests(files)
    pairs = [copies(each) for each in (of_groups, of_files)]
    of_images = {
        "held out together with an equal file": len(pairs[1]),
        "files not read, so copies are not held out together": int((~of_files.any(1)).sum()),
    }
    remarks = [f"{what}: {counted(number, 'images')}" for what, number in of_images.items() if number]
    return groups(len(files), np.concatenate(pairs)), remarks
