"""What is black and white in grayscale images of 16 bits, 32 bits or float, which the files do not record."""

import hashlib
import heapq
import io
from collections import defaultdict

import numpy as np

from cl.shards.images import MAX_PIXELS, MAX_TILED_PIXELS, deep_mode, opened
from cl.sources import Image, RawImage, Storage

SUFFIXES = {".png", ".tif", ".tiff", ".pgm", ".ppm"}  # of formats that may be deep
IMAGES = 1000  # of these suffixes are sampled
PIXELS = 2**14  # of each image are sampled


def measure(listed: list[Image], storage: Storage) -> dict[str, tuple[float, float]]:
    """Measure `storage.percentiles` of the pixels of each deep mode; a hash of their keys chooses the images.

    NaN and infinities do not count. A mode without any sampled pixel has no levels.
    """
    max_pixels = MAX_TILED_PIXELS if storage.tile else MAX_PIXELS
    samples = defaultdict(list)
    for image in _chosen(listed):
        mode, pixels = _sample(image, max_pixels)
        if len(pixels):
            samples[mode].append(pixels)
    levels = {}
    for mode in sorted(samples):
        pixels = np.concatenate(samples[mode]).astype(np.float64)
        black, white = np.percentile(pixels, storage.percentiles).tolist()
        levels[mode] = black, white
    return levels


def _chosen(listed: list[Image]) -> list[Image]:
    """At most IMAGES, whatever the order of the list."""
    may_be_deep = (
        image for image in listed if image.path.suffix.lower() in SUFFIXES and not isinstance(image, RawImage)
    )
    return heapq.nsmallest(IMAGES, may_be_deep, key=lambda image: _hash(image.key))


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _sample(image: Image, max_pixels: int) -> tuple[str, np.ndarray]:
    """The mode of a deep image and at most PIXELS of its finite pixels; none of another image."""
    nothing = "", np.empty(0)
    try:
        content = image.read()
    except FileNotFoundError:  # reported when the image is packed, as is damage
        return nothing
    try:
        with opened(io.BytesIO(content), max_pixels) as picture:
            mode = deep_mode(picture)
            pixels = np.asarray(picture).ravel() if mode else np.empty(0)
    except MemoryError:
        raise
    except Exception:  # decoders may raise anything on damaged bytes
        return nothing
    if mode is None:
        return nothing
    if len(pixels) > PIXELS:
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(_hash(image.key)[:8])))
        pixels = pixels[generator.integers(0, len(pixels), PIXELS)]
    return mode, pixels[np.isfinite(pixels)]
