"""The confusion matrix of an evaluation."""

from collections import Counter
from typing import Any

MOST_CLASSES = 20


def confusion(predictions: list[dict[str, str]]) -> dict[str, Any] | None:
    """The confusion matrix of predictions (`truth`, `predicted`): images of each class by predicted class.

    Above MOST_CLASSES, it shows the classes that are confused most, in either direction; the others share a
    column. None if there are no predictions, or no mistakes among many classes.
    """
    counts = Counter((row["truth"], row["predicted"]) for row in predictions)
    classes = columns = sorted({name for pair in counts for name in pair})
    if len(classes) > MOST_CLASSES:
        mistakes = Counter[str]()
        for pair, images in sorted(counts.items()):
            if pair[0] != pair[1]:
                mistakes.update(dict.fromkeys(pair, images))
        columns = sorted(name for name, _ in mistakes.most_common(MOST_CLASSES))
    rows = [_row(truth, columns, counts) for truth in columns]
    return {"classes": columns, "all_classes": len(classes), "rows": rows} if columns else None


def _row(truth: str, columns: list[str], counts: Counter[tuple[str, str]]) -> dict[str, Any]:
    images = sum(number for (name, _), number in counts.items() if name == truth)
    cells = [counts[truth, predicted] for predicted in columns]
    return {
        "name": truth,
        "images": images,
        "cells": [
            {"images": number, "percent": 100 * number / max(1, images), "right": predicted == truth}
            for predicted, number in zip(columns, cells, strict=True)
        ],
        "others": images - sum(cells),
    }
