"""Formats whose images may have any number of bands: TIFF, NumPy arrays, DICOM, and what Pillow reads."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Pixels(NamedTuple):
    """A decoded image.

    pixels: (H, W, C) uint8, uint16 or float32.
    names: of the C bands; their numbers, from 1, if the file does not name them.
    missing: the value of pixels without data.
    turned: whether the file stores it rotated.
    """

    pixels: np.ndarray
    names: tuple[str, ...]
    named: bool = False
    missing: float | None = None
    turned: bool = False

    def only(self, positions: Sequence[int]) -> "Pixels":
        """The bands at these positions."""
        chosen = np.ascontiguousarray(self.pixels[..., list(positions)])
        return self._replace(pixels=chosen, names=tuple(self.names[number] for number in positions))


def load(content: bytes | memoryview) -> Pixels:
    """Decode a file with all its bands.

    Raises:
        Exception: as `cl.images.bands.read`.
    """
    raise NotImplementedError
