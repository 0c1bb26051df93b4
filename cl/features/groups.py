"""Groups of images that are not independent, such as the frames of a video."""

import numpy as np


def separated(groups: np.ndarray | None, images: int) -> np.ndarray:
    """(N,) int64: the groups, with a group of its own for each image that has none (-1, or no `groups`)."""
    numbers = np.arange(images)
    return numbers if groups is None else np.where(groups < 0, -1 - numbers, groups)
