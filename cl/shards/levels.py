"""Black and white levels of images of more than 8 bits, which files do not record."""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import numpy as np
from PIL import Image as Picture

from cl.images.decoding import MAX_PIXELS, MAX_TILED_PIXELS, deep_mode, no_data
from cl.images.holdout import number_of
from cl.images.image import Image, RawImage
from cl.images.samples import load
from cl.shards.survey import Team, read_fact, survey
from cl.sources import Storage

SUFFIXES = {".png", ".tif", ".tiff", ".pgm", ".ppm"}  # of formats that may be deep
IMAGES = 1000  # sampled per mode
PIXELS = 2**14  # sampled per image
VALUES = 32  # distinct values needed before an extreme one may mark missing data


def measure(listed: Sequence[Image], storage: Storage, team: Team) -> dict[str, tuple[float, float]]:
    """Measure `storage.percentiles` of the pixels of each deep mode; a hash of their keys samples the images.

    Pixels without data do not count: NaN, infinities, the value in a file's GDAL tag, and an untagged value
    far from all others. A mode without sampled pixels gets no levels.
    """
    max_pixels = MAX_TILED_PIXELS if storage.tile else MAX_PIXELS
    levels = {}

    def sample(image: Image) -> np.ndarray:
        return read_fact(image, partial(_pixels, key=image.key), np.empty(0), max_pixels)

    for mode, images in sorted(_by_mode(listed, max_pixels, team).items()):
        chosen = heapq.nsmallest(IMAGES, images, key=lambda image: number_of(image.key))
        pixels = np.concatenate(survey(chosen, sample, f"images of mode {mode} to sample", team))
        if not mode.endswith(";16"):  # the extremes of 16 bits may be saturated pixels
            pixels = pixels[~np.isin(pixels, isolated(pixels))]
        if len(pixels):
            black, white = np.percentile(pixels, storage.percentiles).tolist()
            levels[mode] = black, white
    return levels


def _by_mode(listed: Sequence[Image], max_pixels: int, team: Team) -> dict[str, list[Image]]:
    """The deep images of each mode."""
    may_be_deep = [
        image for image in listed if image.path.suffix.lower() in SUFFIXES and not isinstance(image, RawImage)
    ]
    mode_of = partial(read_fact, fact=deep_mode, otherwise=None, max_pixels=max_pixels)
    by_mode = defaultdict(list)
    for image, mode in zip(may_be_deep, survey(may_be_deep, mode_of, "headers", team), strict=True):
        if mode:
            by_mode[mode].append(image)
    return by_mode


def generator_of(key: str) -> np.random.Generator:
    """Chooses pixels of an image by its key."""
    return np.random.Generator(np.random.Philox(key=number_of(key)))


def _pixels(picture: Picture.Image, key: str) -> np.ndarray:
    """Finite samples of up to PIXELS visible pixels of a deep image, as float64; the key seeds the choice."""
    width, pixels = picture.width, picture.width * picture.height
    chosen = np.arange(pixels)
    if pixels > PIXELS:
        chosen = generator_of(key).integers(0, pixels, PIXELS)
    colour = load(picture)
    if colour is None:
        values = picture.load()  # np.asarray would copy all pixels
        assert values is not None
        sampled = np.array([values[index % width, index // width] for index in chosen.tolist()], np.float64)
    else:
        rows = colour.reshape(pixels, -1)[chosen]
        sampled = rows[rows[:, 3:].all(1), :3].ravel().astype(np.float64)
    return sampled[np.isfinite(sampled) & (sampled != no_data(picture))]


def isolated(pixels: np.ndarray) -> list[float]:
    """An extreme value of several pixels if its distance to the others exceeds their range, at both ends.

    Examples are -9999 and the largest float among reflectances. Masks, with few distinct values, have none.
    """
    values, counts = np.unique(pixels.astype(np.float64), return_counts=True)
    found = []
    for _ in range(2):  # both ends
        if len(values) < VALUES:
            break
        if counts[0] > 1 and values[1] - values[0] > values[-1] - values[1]:
            found.append(values[0])
            values, counts = values[1:], counts[1:]
        elif counts[-1] > 1 and values[-1] - values[-2] > values[-2] - values[0]:
            found.append(values[-1])
            values, counts = values[:-1], counts[:-1]
    return found
