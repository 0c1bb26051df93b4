"""Two encoders on the same images: their paired difference, from the tables that evaluations write.

The interval of a difference is narrower than two separate intervals suggest: easy images are easy for both.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np

from cl.report.files import ResultFiles
from cl.runtime.metric_info import BACKBONE, Measurement
from cl.statistics import PairedComparison, judge

Row = dict[str, str]
Answers = dict[str, tuple[bool, str]]  # by image: whether it was right, and the image's group
# By metric: the file, its column for the backbone (for others named like them), and what counts as right.
TABLES: dict[str, tuple[str, str, Callable[[Row, str], bool]]] = {
    "top1": ("predictions.csv", "predicted", lambda row, column: row[column] == row["truth"]),
    "hit1": ("images.csv", "place", lambda row, column: row[column] == "1"),
    "hit5": ("images.csv", "place", lambda row, column: row[column] != ""),
}


def paired(
    read: ResultFiles, own: tuple[str, Measurement], other: tuple[str, Measurement]
) -> PairedComparison | None:
    """The first encoder's measurement against the other's, each with the name of its result.

    None if a table is missing, is not what gave the number (one of several seeds), or has other images.
    """
    ours, theirs = (answers(read, *each) for each in (own, other))
    if not ours or ours.keys() != theirs.keys():
        return None
    scores = np.array([(theirs[image][0], ours[image][0]) for image in ours], float)  # (images, 2)
    groups = np.array([f"group {group}" if group else f"image {image}" for image, (_, group) in ours.items()])
    return judge({own[1].metric: 100 * scores}, groups)


def answers(read: ResultFiles, result: str, measured: Measurement) -> Answers:
    """Whether each image was right; empty if no table has the images behind this number."""
    metric = measured.metric.removeprefix("cached_")
    if metric not in TABLES or measured.n > 1:
        return {}
    file, backbone, is_right = TABLES[metric]
    rows = read.table(result, file)
    column = backbone if measured.representation == BACKBONE else measured.representation
    if not rows or column not in rows[0]:
        return {}
    found = {row["image"]: (is_right(row, column), row.get("group", "")) for row in rows}
    percent = 100 * sum(right for right, _ in found.values()) / len(found)
    return found if abs(percent - measured.mean) < 0.01 else {}


def chance(read: ResultFiles, result: str, measured: Measurement) -> float | None:
    """What guessing reaches, in percent: always the most frequent class, or any image; None if unknown."""
    if rows := read.table(result, "predictions.csv"):
        return 100 * max(Counter(row["truth"] for row in rows).values()) / len(rows)
    if measured.metric in ("hit1", "hit5") and (images := read.metrics("prepare").get("val_images")):
        return 100 * int(measured.metric[-1]) / images
    return None
