"""Measured in training images: black and white of more than 8 bits, and statistics of bands."""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from statistics import mode

import numpy as np
from PIL import Image as Picture

from cl.images.band_files import load as load_bands
from cl.images.band_formats import Pixels
from cl.images.bands import Bands, Channels, choose, has_data
from cl.images.decoding import MAX_PIXELS, MAX_TILED_PIXELS, deep_mode, no_data
from cl.images.holdout import number_of
from cl.images.image import Image, RawImage
from cl.images.samples import load
from cl.runtime.files import UNREACHABLE, reason
from cl.shards.survey import Team, read_fact, survey
from cl.sources import Storage

SUFFIXES = {".png", ".tif", ".tiff", ".pgm", ".ppm"}  # of formats that may be deep
IMAGES = 1000  # sampled per mode, or of images of bands
PIXELS, VALUES = 2**14, 2**15  # sampled per image: pixels of a deep one; values of all bands
DISTINCT = 32  # values needed before an extreme one may mark missing data
BAND_LEVELS = 1, 99  # percentiles


def measure(listed: Sequence[Image], storage: Storage, team: Team) -> dict[str, tuple[float, float]]:
    """Measure `storage.percentiles` of the pixels of each deep mode; a hash of their keys samples the images.

    Pixels without data do not count: NaN, infinities, the value in a file's GDAL tag, and an untagged value
    far from all others. A mode without sampled pixels gets no levels.
    """
    max_pixels = MAX_TILED_PIXELS if storage.tile else MAX_PIXELS
    levels = {}

    def sample(image: Image) -> np.ndarray:
        return read_fact(image, partial(_pixels, key=image.key), np.empty(0), max_pixels)

    for deep, images in sorted(_by_mode(listed, max_pixels, team).items()):
        pixels = np.concatenate(survey(_chosen(images), sample, f"images of mode {deep} to sample", team))
        if not deep.endswith(";16"):  # the extremes of 16 bits may be saturated pixels
            pixels = pixels[~np.isin(pixels, _isolated(pixels))]
        if len(pixels):
            black, white = np.percentile(pixels, storage.percentiles).tolist()
            levels[deep] = black, white
    return levels


def _chosen(images: Sequence[Image]) -> list[Image]:
    """At most IMAGES of them, by a hash of their keys."""
    return heapq.nsmallest(IMAGES, images, key=lambda image: number_of(image.key))


def _by_mode(listed: Sequence[Image], max_pixels: int, team: Team) -> dict[str, list[Image]]:
    """The deep images of each mode."""
    may_be_deep = [
        image for image in listed if image.path.suffix.lower() in SUFFIXES and not isinstance(image, RawImage)
    ]
    mode_of = partial(read_fact, fact=deep_mode, otherwise=None, max_pixels=max_pixels)
    by_mode = defaultdict(list)
    for image, deep in zip(may_be_deep, survey(may_be_deep, mode_of, "headers", team), strict=True):
        if deep:
            by_mode[deep].append(image)
    return by_mode


def _pixels(picture: Picture.Image, key: str) -> np.ndarray:
    """Finite samples of up to PIXELS visible pixels of a deep image, as float64; the key seeds the choice."""
    width, pixels = picture.width, picture.width * picture.height
    chosen = _sampled(pixels, PIXELS, key)
    colour = load(picture)
    if colour is None:
        values = picture.load()  # np.asarray would copy all pixels
        assert values is not None
        sampled = np.array([values[index % width, index // width] for index in chosen.tolist()], np.float64)
    else:
        rows = colour.reshape(pixels, -1)[chosen]
        sampled = rows[rows[:, 3:].all(1), :3].ravel().astype(np.float64)
    return sampled[np.isfinite(sampled) & (sampled != no_data(picture))]


def _sampled(count: int, most: int, key: str) -> np.ndarray:
    """The positions of all `count` pixels, or of `most` of them by the key of the image."""
    if count <= most:
        return np.arange(count)
    return np.random.Generator(np.random.Philox(key=number_of(key))).integers(0, count, most)


def _isolated(pixels: np.ndarray) -> list[float]:
    """An extreme value of several pixels if its distance to the others exceeds their range, at both ends.

    Examples are -9999 and the largest float among reflectances. Masks, with few distinct values, have none.
    """
    values, counts = np.unique(pixels.astype(np.float64), return_counts=True)
    found = []
    for _ in range(2):  # both ends
        if len(values) < DISTINCT:
            break
        if counts[0] > 1 and values[1] - values[0] > values[-1] - values[1]:
            found.append(values[0])
            values, counts = values[1:], counts[1:]
        elif counts[-1] > 1 and values[-1] - values[-2] > values[-2] - values[0]:
            found.append(values[-1])
            values, counts = values[:-1], counts[:-1]
    return found


def measure_bands(listed: Sequence[Image], channels: Channels, team: Team) -> Bands:
    """The bands of `channels` in a sample of the training images; a hash of their keys chooses them.

    Raises:
        ValueError: no image could be read.
    """
    found = survey(_chosen(listed), partial(_pixels_of_bands, channels=channels), "images to measure", team)
    samples = [each for each in found if isinstance(each, Pixels)]
    if not samples:
        raise ValueError(f"dataset.channels={channels}: no training image can be read ({found[0]})")
    names, dtype = mode([(each.names, each.pixels.dtype) for each in samples])
    samples = [each for each in samples if (each.names, each.pixels.dtype) == (names, dtype)]
    columns = np.concatenate([each.pixels[:, 0] for each in samples]).T
    tagged = [each.missing for each in samples if each.missing is not None]
    missing = mode(tagged) if tagged else _untagged(columns)
    statistics = [_statistics(column[has_data(column, missing)]) for column in columns]
    mean, deviation, levels = zip(*statistics, strict=True)
    return Bands(
        names=names,
        dtype=str(dtype),
        mean=mean,
        deviation=deviation,
        levels=levels,
        missing=missing,
        channels=channels,
    )


def _pixels_of_bands(image: Image, channels: Channels) -> Pixels | str:
    """Some pixels (n, 1, C) of an image; or why it cannot be read, which packing will report."""
    try:
        decoded = choose(load_bands(image.read()), channels)
    except Exception as error:  # decoders may raise anything on damaged bytes
        if isinstance(error, MemoryError) or getattr(error, "errno", None) not in {None, *UNREACHABLE}:
            raise
        return reason(error)
    bands = len(decoded.names)
    pixels = decoded.pixels.reshape(-1, 1, bands)
    return decoded._replace(pixels=pixels[_sampled(len(pixels), max(1, VALUES // bands), image.key)])


def _untagged(columns: np.ndarray) -> float | None:
    """The value far from all others, such as -9999, if the bands have one; the most frequent such value."""
    if columns.dtype.kind != "f":  # the extremes of integers may be saturated pixels
        return None
    values = [value for column in columns for value in _isolated(column[np.isfinite(column)])]
    return mode(values) if values else None


def _statistics(values: np.ndarray) -> tuple[float, float, tuple[float, float]]:
    """Mean, deviation, and levels of a band; of one without data, those of a constant 0."""
    values = values.astype(np.float64) if len(values) else np.zeros(1)
    low, high = np.percentile(values, BAND_LEVELS).tolist()
    return float(values.mean()), float(values.std()) or 1.0, (low, high)
