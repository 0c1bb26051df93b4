"""Images that are held out together: those of a group, of a burst, and those with equal files."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from cl.console.wording import counted
from cl.features.copies import groups
from cl.features.series import series
from cl.images.contents import content_of
from cl.images.decoding import taken_at
from cl.shards.duplicates import UNREAD, as_array, copies, digest, digest_of


def digests(files: Sequence[Path]) -> np.ndarray:
    """(N, 2) uint64: hashes of the files' bytes; `UNREAD` for a missing or closed file."""
    return as_array([digest_of(partial(content_of, file)) for file in files])


def held_together(names: np.ndarray, of_files: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """A number (N,) for each image, equal if a group or equal files connect them; remarks.

    Args:
        names: (N,) of the groups of the images, "" for an image without one.
        of_files: (N, 2), `digests` of their files; one that is missing, as beside features, has no copy.
    """
    of_groups = as_array([digest(name.encode()) if name else UNREAD for name in names])
    pairs = [copies(each) for each in (of_groups, of_files)]
    of_images = {
        "held out together with an equal file": len(pairs[1]),
        "files not read, so copies are not held out together": int((~of_files.any(1)).sum()),
    }
    remarks = [f"{what}: {counted(number, 'images')}" for what, number in of_images.items() if number]
    return groups(len(names), np.concatenate(pairs)), remarks


def with_bursts(
    together: np.ndarray,
    features: Sequence[np.ndarray],
    files: Sequence[Path],
    labels: np.ndarray,
    grouped: np.ndarray,
) -> tuple[np.ndarray, list[str]]:
    """The numbers (N,) of `held_together`, equal also for images of a burst; a remark if there are bursts.

    Args:
        features, labels: as `cl.features.series.series` takes them.
        files: of the images; their names and the times in them propose which belong together.
        grouped: (N,) whether an image has a group, which replaces its burst.
    """
    # One image per number: copies are not a burst, and do not show how similar independent images are.
    _, firsts, number = np.unique(together, return_index=True, return_inverse=True)
    free = np.setdiff1d(np.arange(len(firsts)), number[grouped])
    if not len(free):
        return together, []
    images = firsts[free]
    distinct = [files[image] for image in images]
    times = np.array([taken_at(file) for file in distinct])
    pairs = series([each[images] for each in features], list(map(str, distinct)), labels[images], times)
    if not len(pairs):
        return together, []
    connected = groups(len(firsts), free[pairs])
    sizes = np.bincount(connected)
    bursts = sizes[sizes > 1]
    remark = (
        f"{bursts.sum()} of {counted(len(images), 'images')} are in about {counted(len(bursts), 'bursts')} "
        "(by names, times and features), and those of a burst count together; give a column group instead, "
        "or --ungrouped if each image stands alone"
    )
    return connected[number], [remark]
