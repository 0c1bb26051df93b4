"""What a column of a table looks useful for in training, and the numbers that say so."""

from contextlib import suppress

import numpy as np

from cl.commands.classifiers.heads import FOLDS
from cl.commands.inputs.labels import Labels
from cl.commands.inputs.sample import Sample
from cl.commands.jobs.starts import Start, by_labels, folds
from cl.features.scores import nearest_agrees
from cl.images.table import column_of
from cl.statistics import independent, interval

FEW = 10  # values of a column that may say where or how images were taken
Cells = dict[str, str]  # what a column says about each image of a folder, "" for nothing


def useful(
    table: Labels | None, images: Sample, together: np.ndarray, start: Start
) -> tuple[list[str], dict[str, Cells]]:
    """Sentences about useful columns of the table besides path, label and split, and their cells."""
    names, files = [*images.listed], [images.folder / name for name in images.listed]
    columns: dict[str, list[str]] = {}
    for name in table.unread if table else ():
        with suppress(ValueError):  # captions with line breaks, or two columns of a name
            assert table
            if column_of(name) != "split":
                columns[name] = table.with_column(name).cells(name, names, files).tolist()
    if table and table.has_groups:
        columns["group"] = [group for _, group in images.listed.values()]
    hints, found = [], {}
    for name, cells in columns.items():
        known = dict(zip(names, cells, strict=True))
        of_files = np.array([known[str(file.relative_to(images.folder))] for file in images.files])
        if hint := suggestion(name, of_files, images.labels, together, start):
            hints.append(hint)
            found[name] = known
    return hints, found


def suggestion(
    name: str, cells: np.ndarray, labels: np.ndarray, together: np.ndarray, start: Start
) -> str | None:
    """A sentence about a column that looks useful as `dataset.within` or `dataset.positive`.

    Args:
        cells, labels: (N,), "" for nothing; a column that follows from labels is of no use.
        together: (N,), equal for images that are held out together.
    """
    known = cells != ""
    values, codes = np.unique(cells[known], return_inverse=True)
    if not 2 <= len(values) <= len(codes) / 2 or len({*zip(labels, cells, strict=True)}) == len({*labels}):
        return None
    use = _within if len(values) <= FEW else _positive
    found = use(start.features[known], codes, together[known])
    return found and f"column {name}: {len(values)} values; {found}={name} may help"


def _within(features: np.ndarray, codes: np.ndarray, together: np.ndarray) -> str | None:
    """If logistic regression makes half as many errors as the most frequent value."""
    try:
        measures = by_labels(features, codes, together, folds(codes, together, FOLDS))
    except ValueError:  # a value has one image or group
        return None
    percent, within = measures["logistic regression"]
    chance = 100 * np.bincount(codes).max() / len(codes)
    if percent - chance < 100 - percent:
        return None
    return (
        f"features predict {percent:.0f} % {within or ''} of them, the most frequent is {chance:.0f} %; if "
        "they say where or how images were taken, dataset.within"
    )


def _positive(features: np.ndarray, codes: np.ndarray, together: np.ndarray) -> str | None:
    """If the nearest image has the same value more often than by chance."""
    shared, right, chance = nearest_agrees(features, codes)
    percent = 100 * right.mean()
    within = interval(percent, independent(right.astype(float), together[shared]))
    if within is None or within.low <= chance:
        return None
    return (
        f"the nearest image has the same for {percent:.0f} % {within}, by chance {chance:.0f} %; if they are "
        "objects or scenes, dataset.positive"
    )
