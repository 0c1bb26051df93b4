"""What most training images of any number of bands have in common, and statistics of each band."""

import heapq
from collections.abc import Sequence
from functools import partial
from statistics import mode

import numpy as np

from cl.images.band_files import load
from cl.images.band_formats import Pixels
from cl.images.bands import Bands, Channels, choose, has_data
from cl.images.holdout import number_of
from cl.images.image import Image
from cl.runtime.files import UNREACHABLE, reason
from cl.shards.levels import IMAGES, generator_of, isolated
from cl.shards.survey import Team, survey

VALUES = 2**15  # sampled per image, over all bands
LEVELS = 1, 99  # percentiles


def measure(listed: Sequence[Image], channels: Channels, team: Team) -> Bands:
    """The bands of `channels` in a sample of the training images; a hash of their keys chooses them.

    Raises:
        ValueError: no image could be read.
    """
    chosen = heapq.nsmallest(IMAGES, listed, key=lambda image: number_of(image.key))
    found = survey(chosen, partial(_sampled, channels=channels), "images to measure", team)
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


def _sampled(image: Image, channels: Channels) -> Pixels | str:
    """Some pixels (n, 1, C) of an image; or why it cannot be read, which packing will report."""
    try:
        decoded = choose(load(image.read()), channels)
    except Exception as error:  # decoders may raise anything on damaged bytes
        if isinstance(error, MemoryError) or getattr(error, "errno", None) not in {None, *UNREACHABLE}:
            raise
        return reason(error)
    pixels = decoded.pixels.reshape(-1, 1, len(decoded.names))
    if (most := max(1, VALUES // pixels.shape[2])) < len(pixels):
        pixels = pixels[generator_of(image.key).integers(0, len(pixels), most)]
    return decoded._replace(pixels=pixels.copy())


def _untagged(columns: np.ndarray) -> float | None:
    """The value far from all others, such as -9999, if the bands have one; the most frequent such value."""
    if columns.dtype.kind != "f":  # the extremes of integers may be saturated pixels
        return None
    values = [value for column in columns for value in isolated(column[np.isfinite(column)])]
    return mode(values) if values else None


def _statistics(values: np.ndarray) -> tuple[float, float, tuple[float, float]]:
    """Mean, deviation, and levels of a band; of one without data, those of a constant 0."""
    values = values.astype(np.float64) if len(values) else np.zeros(1)
    low, high = np.percentile(values, LEVELS).tolist()
    return float(values.mean()), float(values.std()) or 1.0, (low, high)
