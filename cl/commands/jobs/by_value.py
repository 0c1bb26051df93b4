"""How well features predict a column of the labels' table, and find classes across its values."""

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
    name: str, bank: LabelledImages, queries: LabelledImages, known: np.ndarray, values: np.ndarray, k: int
) -> dict[str, np.ndarray]:
    """(M,) of 0 or 1: whose class kNN and logistic regression find from images of other values of a column.

    Args:
        known, values: `cells`.
    """
    parts = [(known != value, values == value) for value in np.unique(values)]
    for train, val in parts:
        if len({*bank.labels[train]}) < 2:
            raise ValueError(
                f"--across {name}: without {values[val][0] or 'empty cells'}, the training images have fewer "
                "than two classes; choose another column"
            )
    right = correct_in_parts(bank.features, bank.labels, queries.features, queries.labels, parts, k=k)
    return {measure: right[measure] for measure in ("kNN", "logistic regression")}


def worst(name: str, values: np.ndarray, right: np.ndarray) -> tuple[str, np.ndarray]:
    """The value of the column with the lowest mean of `right` (M,), in words, and which images have it."""
    lowest = min(np.unique(values), key=lambda value: right[values == value].mean())
    return f"worst {name} ({lowest or 'none'})", values == lowest
