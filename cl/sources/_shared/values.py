"""What the values of `dataset.positive` and `dataset.within` let training do."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

ALONE = {"positive": "have only their own views as positives", "within": "have no negatives and do not count"}
USELESS = {"positive": "so none is a negative of another", "within": "so all remain negatives"}


def check_values(role: str, column: str, values: Sequence[str | None]) -> list[str]:
    """A sentence about images that have no other of their value in the column of `positive` or `within`."""
    counts = Counter(values)
    images, missing, option = counts.total(), counts.pop(None, 0), f"dataset.{role}={column}"
    if len(counts) == 1 and not missing:
        raise ValueError(
            f"{option}: all {images} images have the value {next(iter(counts))!r}, {USELESS[role]}; choose "
            "another column"
        )
    alone = missing + sum(count == 1 for count in counts.values())
    if alone == images:
        raise ValueError(
            f"{option}: no two of the {images} images have the same value; choose another column"
        )
    found = f"{option}: images without a value, or alone with theirs, {ALONE[role]}: {alone}"
    return [found] if alone else []


def check_connected(column: str, groups: Sequence[str | None], values: Sequence[str | None]) -> list[str]:
    """A sentence if most images are connected by their groups and their values of the column `positive`."""
    group, value = (
        np.unique([cell or f"\0{image}" for image, cell in enumerate(cells)], return_inverse=True)[1]
        for cells in (groups, values)
    )
    links = coo_array((np.ones(len(group)), (group, value + group.max() + 1)))
    links.resize((max(links.shape),) * 2)
    connected = connected_components(links, directed=False)[1][group]
    images, most = len(group), int(np.bincount(connected).max())
    sentence = (
        f"dataset.positive={column}: groups and values connect {most} of {images} images, so none of these "
        "is a negative of another"
    )
    if most == images:
        raise ValueError(f"{sentence}; choose another column")
    return [sentence] if 2 * most > images else []
