"""Copies of images: made ones to calibrate on, a comparison of pixels, and groups of connected pairs."""

import io
from collections.abc import Callable
from functools import cache

import numpy as np
from PIL import Image as Picture

from cl.console.progress import Count, silent
from cl.features.knn import READ, nearest_in_array, unit_blocks

SIDE = 64  # pixels of a small version
LEAST = 1e-3  # gray levels of 255; smaller differences are rounding
CELLS = 16  # of a compared window, per axis
CROPPED, STEP = 4, 1 / 20  # windows are up to 4/20 shorter than a side, and move by 1/20
QUALITY = (30, 70)  # of JPEG
SHORTER = (0.8, 0.95)  # sides of a crop
BRIGHTER = (0.7, 0.85, 1.2, 1.4)

Change = Callable[[Picture.Image, np.random.Generator], Picture.Image]


def resized(picture: Picture.Image, rng: np.random.Generator) -> Picture.Image:
    """Half as wide and high."""
    width, height = (max(1, side // 2) for side in picture.size)
    return picture.resize((width, height), Picture.Resampling.BICUBIC)


def recompressed(picture: Picture.Image, rng: np.random.Generator) -> Picture.Image:
    """As JPEG, with a quality from 30 to 70."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=int(rng.integers(*QUALITY, endpoint=True)))
    return Picture.open(file).convert("RGB")


def cropped(picture: Picture.Image, rng: np.random.Generator) -> Picture.Image:
    """A window with 80 to 95 % of each side."""
    size = [max(1, round(side * rng.uniform(*SHORTER))) for side in picture.size]
    left, top = (int(rng.integers(side - part + 1)) for side, part in zip(picture.size, size, strict=True))
    return picture.crop((left, top, left + size[0], top + size[1]))


def flipped(picture: Picture.Image, rng: np.random.Generator) -> Picture.Image:
    """Left and right exchanged."""
    return picture.transpose(Picture.Transpose.FLIP_LEFT_RIGHT)


def brightness(picture: Picture.Image, rng: np.random.Generator) -> Picture.Image:
    """All values multiplied by 0.7 to 1.4, and clipped."""
    factor = rng.choice(BRIGHTER)
    return Picture.fromarray((np.asarray(picture, np.float32) * factor).clip(0, 255).astype(np.uint8))


def resized_and_recompressed(picture: Picture.Image, rng: np.random.Generator) -> Picture.Image:
    """Both, as messengers do."""
    return recompressed(resized(picture, rng), rng)


CHANGES: tuple[Change, ...] = (resized, recompressed, resized_and_recompressed, cropped, flipped, brightness)


def small(picture: Picture.Image) -> np.ndarray:
    """A gray version (SIDE, SIDE) uint8 of an RGB picture, whatever its shape."""
    return np.asarray(picture.convert("L").resize((SIDE, SIDE), Picture.Resampling.BILINEAR))


def correlations(image: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(m,): how well each of the others, or its mirror image, agrees with the best window of the image.

    The value is the cosine of the signed square roots of the differences in gray between adjacent cells of a
    16 x 16 grid, from -1 to 1. Windows have 80 to 100 % of each side. Two flat images agree perfectly. The
    image (SIDE, SIDE) and the others (m, SIDE, SIDE) are from `small`.
    """
    windows = _differences(_cells(image[None], _windows())[0])  # (225, 480)
    agreement = [(descriptors(x) @ windows.T).max(1) for x in (others, others[:, :, ::-1])]
    flat = (others == others[:, :1, :1]).all((1, 2)) & (image == image[0, 0]).all()
    return np.where(flat, 1, np.maximum(*agreement))


def descriptors(images: np.ndarray) -> np.ndarray:
    """(m, 480) float32 of length 1: what `correlations` compares of whole images (m, SIDE, SIDE)."""
    return _differences(_cells(images, _windows()[:1])[:, 0])


@cache
def _windows() -> np.ndarray:
    """(15, CELLS, SIDE): for each window along an axis, the share of each pixel in each of its cells."""
    edges = []
    for shorter in range(CROPPED + 1):
        for start in range(shorter + 1):
            edges.append(SIDE * (start * STEP + np.linspace(0, 1 - shorter * STEP, CELLS + 1)))
    bounds, pixels = np.array(edges)[:, :, None], np.arange(SIDE)
    overlap = np.minimum(bounds[:, 1:], pixels + 1) - np.maximum(bounds[:, :-1], pixels)
    shares = overlap.clip(min=0)
    return (shares / shares.sum(2, keepdims=True)).astype(np.float32)


def _cells(images: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """(m, w^2, CELLS, CELLS): the mean gray of each cell of each pair of windows along the two axes."""
    count, cells = len(windows), len(windows) * CELLS
    means = windows.reshape(cells, SIDE) @ images.astype(np.float32) @ windows.reshape(cells, SIDE).T
    grid = means.reshape(-1, count, CELLS, count, CELLS).swapaxes(2, 3)
    return grid.reshape(len(images), count**2, CELLS, CELLS)


def _differences(cells: np.ndarray) -> np.ndarray:
    """(m, 2 CELLS (CELLS - 1)): differences between adjacent cells, as vectors of length 1 (or 0).

    Each is replaced by its square root with its sign, so that one strong edge does not decide alone.
    """
    count = len(cells)
    down, right = np.diff(cells, axis=1).reshape(count, -1), np.diff(cells, axis=2).reshape(count, -1)
    vectors = np.concatenate([down, right], axis=1)
    vectors = np.sign(vectors) * np.sqrt(np.where(np.abs(vectors) < LEAST, 0, np.abs(vectors)))
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)


def neighbour_pairs(queries: np.ndarray, bank: np.ndarray, k: int, least: float = -1) -> np.ndarray:
    """(m, 2), sorted, smaller positions first: each image i with the k rows of the bank nearest to query i.

    Queries and bank have a row (N, D) for each image. A pair has at least the cosine `least`.
    """
    k = min(k + 1, len(bank))  # an image may be its own nearest
    cosines, positions = nearest_in_array(queries, bank, k)
    image, column = np.nonzero((cosines >= least) & (positions != np.arange(len(bank))[:, None]))
    other = positions[image, column]
    numbers = np.unique(np.minimum(image, other) * len(bank) + np.maximum(image, other))
    return np.stack(np.divmod(numbers, len(bank)), axis=1)


def cosines_of(features: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """(m,) float32: the cosine of each pair (m, 2) of rows of (N, D)."""
    cosines = np.empty(len(pairs), np.float32)
    for start in range(0, len(pairs), READ):
        block = slice(start, start + READ)
        ((_, first),), ((_, second),) = (list(unit_blocks(features[x], READ)) for x in pairs[block].T)
        cosines[block] = (first * second).sum(1).numpy()
    return cosines.clip(-1, 1)


def agreement(images: np.ndarray, pairs: np.ndarray, count: Count = silent) -> np.ndarray:
    """(m,): the larger of both `correlations` of each pair, since either image may be a part of the other.

    Pairs (m, 2) are positions in `images` (n, SIDE, SIDE), from `small`, which may be memory-mapped.
    """
    values = np.empty(2 * len(pairs))
    first, second = np.concatenate([pairs, pairs[:, ::-1]]).T
    blocks = by_value(first) if len(pairs) else []
    with count(len(blocks), "images, compared to find near copies (3 of 3)") as report:
        for rows in blocks:
            values[rows] = correlations(images[first[rows[0]]], images[second[rows]])
            report(1)
    return np.maximum(*np.split(values, 2))


def by_value(values: np.ndarray) -> list[np.ndarray]:
    """The positions of each value, ascending, in the order of the values."""
    ends = np.cumsum(np.unique(values, return_counts=True)[1])[:-1]
    return np.split(values.argsort(kind="stable"), ends)


def groups(count: int, pairs: np.ndarray) -> np.ndarray:
    """(count,): a number for each image, equal for images that pairs (m, 2) connect."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(pairs)), tuple(pairs.T)), shape=(count, count))
    return connected_components(links, directed=False)[1]
