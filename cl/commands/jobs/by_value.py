"""How well features predict a column of the labels' table, and find classes across its values."""

from collections.abc import Iterator

import numpy as np

from cl.commands.inputs.labelled import LabelledImages
from cl.commands.inputs.labels import Labels
from cl.features.scores import correct_in_parts


def cells(
    table: Labels, option: str, name: str, bank: LabelledImages, queries: LabelledImages
) -> tuple[np.ndarray, np.ndarray]:
    """(N,) and (M,): what the column that the option names says about training and validation images."""
    known, values = (table.cells(option, images.names, images.files) for images in (bank, queries))
    if not any(values):
        raise ValueError(f"{option} {name}: the validation images have none; choose another column")
    if len({*known} - {""}) < 2:
        raise ValueError(
            f"{option} {name}: the training images have fewer than two values; choose another column"
        )
    return known, values


def across(
    name: str, table: Labels, bank: LabelledImages, queries: LabelledImages, ends: list[int], k: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray, int]]:
    """Whose class kNN and logistic regression find from training images of other values of a column.

    By E encoders, whose features end at `ends`. The worst value has the lowest mean over images and encoders.
    Images of a class that no other value has in training do not count.

    Yields:
        The measure; whether each encoder is right (M, E); which images count (M,), of all values or of the
        worst; of how many values it is the worst, or 1 for all images.
    """
    known, values = cells(table, "--across", name, bank, queries)
    parts, shared = [], np.zeros(len(values), bool)
    for value in np.unique(values):
        train, val = known != value, values == value
        if len({*bank.labels[train]}) < 2:
            raise ValueError(
                f"--across {name}: without {value or 'empty cells'}, the training images have fewer than two "
                "classes; choose another column"
            )
        parts.append((train, val))
        shared[val] = np.isin(queries.labels[val], bank.labels[train])
    if not shared.any():
        raise ValueError(
            f"--across {name}: no validation image has a class of other values; choose another column"
        )
    sides = zip(*(np.split(images.features, ends, axis=1) for images in (bank, queries)), strict=True)
    found = [correct_in_parts(x, bank.labels, y, queries.labels, parts, k=k) for x, y in sides]
    of_values = [val & shared for _, val in parts if shared[val].any()]
    for measure in ("kNN", "logistic regression"):
        right = np.stack([each[measure] for each in found], 1)
        yield f"across {name}: {measure}", right, shared, 1
        of_worst = min(of_values, key=lambda counts: right[counts].mean())
        title = f"worst {name} ({values[of_worst][0] or 'none'}): {measure}"
        yield title, right, of_worst, len(of_values)
