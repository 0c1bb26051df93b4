"""Distorted copies of one patch per image, its surrogate class (Exemplar-CNN, Dosovitskiy et al. 2014).

All of it runs in the data workers, because its images are small; the authors stored them before training.
"""

import math
from typing import NamedTuple

import cv2
import numpy as np
from pydantic import Field

from cl.runtime.base_config import BaseConfig

CELLS = 8  # per side of a patch, in the map of energies
SIGMA = 2.0  # of the low-pass filters of this map, in cells
# Orthonormal principal components of the colours of natural images: lightness, blue to yellow, green to red.
COMPONENTS = np.array([[1, 1, 1], [1, 1, -2], [1, -1, 0]], np.float32)
COMPONENTS /= np.linalg.norm(COMPONENTS, axis=1, keepdims=True)
INTERPOLATION = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}


class Surrogate(BaseConfig):
    """A patch whose place is the same in every epoch, and the largest distortions of its copies.

    sizes: of patches, geometric from the smallest to the largest `area` of the view.
    scale: the side is multiplied by a number from 1 / scale to scale.
    shift: in sides of the patch, in each direction. rotation: degrees, in each direction.
    components: standard deviations of x, whose 2^x multiply the principal components of colours.
    power, factor, offset: saturation and value v become 2^b v^(2^a) + c, with a, b, c up to these, or minus.
    hue: shift in each direction, as a fraction of a circle.
    """

    sizes: int = Field(gt=0)
    scale: float = Field(ge=1)
    shift: float = Field(ge=0)
    rotation: float = Field(ge=0, le=180)
    components: tuple[float, float, float]
    power: float = Field(ge=0)
    factor: float = Field(ge=0)
    offset: float = Field(ge=0)
    hue: float = Field(ge=0, le=0.5)


class Patch(NamedTuple):
    """A square by its centre and its side, in pixels from the upper left corner of the image."""

    x: float
    y: float
    side: float


class Distortion(NamedTuple):
    """How a copy differs from its patch; each of saturation and value has a power, a factor and an offset."""

    scale: float  # factor of the side
    right: float  # in sides
    down: float
    rotation: float  # radians
    components: np.ndarray  # (3,), factors
    saturation: tuple[float, float, float]
    value: tuple[float, float, float]
    hue: float  # shift, as a fraction of a circle


def choose_patch(
    pixels: np.ndarray, area: tuple[float, float], sizes: int, rng: np.random.Generator
) -> Patch:
    """One of `sizes` sizes, at a random place in proportion to the energy of the details around it.

    area: what the smallest and the largest patch cover of the image's central square.
    """
    height, width, _ = pixels.shape
    number, place = rng.random(2).tolist()
    step = int(sizes * number) / max(1, sizes - 1)
    side = min(height, width) * math.sqrt(area[0] * (area[1] / area[0]) ** step)
    energy = _energies(pixels, side)
    rows, columns = energy.shape
    cumulated = energy.cumsum(dtype=np.float64)
    cell = int(np.searchsorted(cumulated, place * cumulated[-1], side="right"))
    row, column = divmod(min(cell, energy.size - 1), columns)
    return Patch((column + 0.5) * width / columns, (row + 0.5) * height / rows, side)


def _energies(pixels: np.ndarray, side: float) -> np.ndarray:
    """The smoothed square of the high-pass filtered image, 0 where a patch would not lie inside it."""
    height, width, _ = pixels.shape
    columns, rows = (max(1, round(CELLS * length / side)) for length in (width, height))
    gray = cv2.resize(pixels, (columns, rows), interpolation=cv2.INTER_AREA).sum(2, dtype=np.float32)
    details = gray - cv2.GaussianBlur(gray, (0, 0), SIGMA)
    energy = cv2.GaussianBlur(details * details, (0, 0), SIGMA) + np.float32(1e-6)  # also if all is flat
    inside = np.zeros_like(energy)
    border = [min(CELLS // 2, (length - 1) // 2) for length in (rows, columns)]
    window = tuple(slice(b, length - b) for b, length in zip(border, (rows, columns), strict=True))
    inside[window] = energy[window]
    return inside


def draw(config: Surrogate, rng: np.random.Generator) -> Distortion:
    """A random distortion."""
    low = 1 / config.scale
    scale, right, down, rotation, hue, *rest = (2 * rng.random(11) - 1).tolist()
    saturation, value = (
        (2 ** (config.power * power), 2 ** (config.factor * factor), config.offset * offset)
        for power, factor, offset in (rest[:3], rest[3:])
    )
    return Distortion(
        scale=low + (config.scale - low) * (scale + 1) / 2,
        right=config.shift * right,
        down=config.shift * down,
        rotation=math.radians(config.rotation * rotation),
        components=2 ** (np.array(config.components) * rng.standard_normal(3)),
        saturation=saturation,
        value=value,
        hue=config.hue * hue,
    )


def warp(pixels: np.ndarray, patch: Patch, how: Distortion, size: int, interpolation: str) -> np.ndarray:
    """The scaled, shifted and rotated patch, (size, size, 3) uint8; beyond the image is its reflection.

    Each pixel is the mean of as many samples as the patch is larger than `size`, against aliasing.
    """
    side = patch.side * how.scale
    samples = max(1, round(side / size))
    n = size * samples
    step = side / n
    across, down = math.cos(how.rotation) * step, math.sin(how.rotation) * step
    x, y = patch.x + how.right * patch.side - 0.5, patch.y + how.down * patch.side - 0.5
    middle = (n - 1) / 2
    inverse = np.array(
        [
            [across, -down, x - (across - down) * middle],
            [down, across, y - (down + across) * middle],
        ]
    )
    flags = INTERPOLATION[interpolation] | cv2.WARP_INVERSE_MAP
    warped = cv2.warpAffine(pixels, inverse, (n, n), flags=flags, borderMode=cv2.BORDER_REFLECT_101)
    return cv2.resize(warped, (size, size), interpolation=cv2.INTER_AREA) if samples > 1 else warped


def recolour(pixels: np.ndarray, how: Distortion, mean: tuple[float, float, float]) -> np.ndarray:
    """Multiply the principal components around the mean colour, stretch to 0 to 1, change HSV; uint8.

    Args:
        pixels: (H, W, 3) uint8.
        mean: of RGB in [0, 1], of the data set.
    """
    centre = np.array(mean, np.float32)
    matrix = (COMPONENTS.T * how.components.astype(np.float32)) @ COMPONENTS
    x = np.clip((pixels.astype(np.float32) / 255 - centre) @ matrix + centre, 0, 1)
    x -= x.min()
    x /= max(float(x.max()), 1e-5)
    hue, saturation, value = cv2.split(cv2.cvtColor(x, cv2.COLOR_RGB2HSV))  # hue in degrees
    hue = np.mod(hue + np.float32(360 * how.hue), np.float32(360))
    changed = [
        np.clip(channel**power * factor + offset, 0, 1, dtype=np.float32)
        for channel, (power, factor, offset) in ((saturation, how.saturation), (value, how.value))
    ]
    rgb = cv2.cvtColor(cv2.merge([hue, *changed]), cv2.COLOR_HSV2RGB)
    return np.rint(255 * rgb).astype(np.uint8)
