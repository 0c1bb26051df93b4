"""Images of any number of bands, in the depth of their files; `cl.images.band_files` reads the formats."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from cl.images.band_files import Pixels, load
from cl.runtime.base_config import BaseConfig

MOST = 64  # bands of an image
DTYPES = "uint8", "uint16", "float32"  # each holds all values of the one before


def _distinct(channels: Sequence[int | str]) -> Sequence[int | str]:
    if len(set(channels)) < len(channels):
        raise ValueError(f"channels={list(channels)} contains duplicates; list each band once")
    return channels


Listed = Annotated[
    list[PositiveInt] | list[str], Field(min_length=1, max_length=MOST), AfterValidator(_distinct)
]
Channels = Literal["all"] | Listed  # numbers from 1, as GDAL counts, or names


class Bands(BaseConfig):
    """What the images of a data set have in common: C bands, and statistics of each in the training images.

    Statistics are in units of the stored values, and leave out NaN, infinities and `missing`.
    """

    names: tuple[str, ...] = Field(min_length=1, max_length=MOST)
    dtype: Literal["uint8", "uint16", "float32"]
    mean: tuple[float, ...]
    deviation: tuple[PositiveFloat, ...] = Field(description="1 for a constant band")
    levels: tuple[tuple[float, float], ...] = Field(description="the 1st and 99th percentile, to show a band")
    missing: float | None = Field(default=None, description="the value of pixels without data")

    @model_validator(mode="after")
    def _one_of_each(self) -> "Bands":
        for name in ("mean", "deviation", "levels"):
            if len(values := getattr(self, name)) != len(self.names):
                raise ValueError(f"{name} has {len(values)} values for {len(self.names)} bands")
        return self


def read(content: bytes | memoryview, channels: Channels = "all") -> np.ndarray:
    """Decode a file to (H, W, C) uint8, uint16 or float32, with the chosen bands in their order.

    Raises:
        Exception: of any type, if the file is damaged, too large, not an image or lacks a band.
    """
    return choose(load(content), channels).pixels


def choose(image: Pixels, channels: Channels) -> Pixels:
    """Keep the bands of `channels`.

    Raises:
        ValueError: one is not there, or there are more than MOST.
    """
    count = image.pixels.shape[2]
    if channels == "all":
        if count > MOST:
            raise ValueError(f"{count} bands, expected at most {MOST}; list some in dataset.channels")
        return image
    return image.only([_number(channel, image, count) for channel in channels])


def _number(channel: int | str, image: Pixels, count: int) -> int:
    """The position, from 0, of a band."""
    if isinstance(channel, str):
        if channel not in image.names:
            named = f"the bands {', '.join(image.names)}" if image.named else "bands without names"
            raise ValueError(f"no band {channel}, found {named}; correct dataset.channels")
        return image.names.index(channel)
    if channel > count:
        raise ValueError(f"{count} bands, expected at least {channel}; correct dataset.channels")
    return channel - 1


def standardise(pixels: np.ndarray, bands: Bands) -> np.ndarray:
    """(H, W, C) of stored values to float32: (x - mean) / deviation of each band, and 0 without data."""
    mean, deviation = (np.asarray(each, np.float32) for each in (bands.mean, bands.deviation))
    values = (pixels.astype(np.float32) - mean) / deviation
    return np.where(has_data(pixels, bands.missing), values, np.float32(0))


def has_data(pixels: np.ndarray, missing: float | None) -> np.ndarray:
    """Whether each value is finite and not `missing`; a bool for each."""
    known = np.isfinite(pixels)
    return known if missing is None else known & (pixels != missing)
