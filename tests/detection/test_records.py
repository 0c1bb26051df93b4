"""An image with its objects: reading it, and its masks."""

from pathlib import Path

import numpy as np

from cl.detection.records import Record


def test_masks_come_from_polygons_and_from_run_lengths() -> None:
    square = [[10, 10, 20, 10, 20, 20, 10, 20]]
    counts = {"size": [4, 4], "counts": [5, 2, 9]}
    one = Record(1, Path(), 30, 30, np.zeros((1, 4)), np.zeros(1), np.zeros(1, bool), [square])
    assert one.masks().sum() == 100
    two = Record(1, Path(), 4, 4, np.zeros((1, 4)), np.zeros(1), np.zeros(1, bool), [counts])
    assert two.masks()[0].T.reshape(-1).tolist() == [0] * 5 + [1] * 2 + [0] * 9
