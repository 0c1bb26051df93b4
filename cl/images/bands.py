"""Images of any number of bands, in the depth of their files; `cl.images.band_files` reads the formats."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from cl.images.band_files import load
from cl.images.band_formats import Pixels
from cl.runtime.base_config import BaseConfig, distinct

MOST = 64  # bands of an image
DTYPES = "uint8", "uint16", "float32"  # each holds all values of the one before


Listed = Annotated[
    list[PositiveInt] | list[str], Field(min_length=1, max_length=MOST), AfterValidator(distinct)
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
    channels: Channels = Field(default="all", description="the bands of a file, in this order")

    @model_validator(mode="after")
    def _one_of_each(self) -> "Bands":
        for name in ("mean", "deviation", "levels"):
            if len(values := getattr(self, name)) != len(self.names):
                raise ValueError(f"{name} has {len(values)} values for {len(self.names)} bands")
        return self


def read_as(content: bytes | memoryview, bands: Bands) -> Pixels:
    """Decode a file to the bands and the type of a data set, without loss.

    Raises:
        Exception: as `load`; or the file has other bands, another type, or another value without data.
    """
    image = choose(load(content), bands.channels)
    found, dtype = image.pixels.shape[2], str(image.pixels.dtype)
    if found != len(bands.names):
        raise ValueError(f"{found} bands, expected {len(bands.names)} as in most training images")
    moved = {name for name, own in zip(image.names, bands.names, strict=True) if name != own}
    if image.named and (moved if bands.channels == "all" else moved & {*bands.names}):
        raise ValueError(
            f"the bands {', '.join(image.names)}, expected {', '.join(bands.names)}; list them in "
            "dataset.channels"
        )
    if dtype != bands.dtype:
        raise ValueError(
            f"pixels of {dtype}, expected {bands.dtype}, as their units may differ; write all images as one"
        )
    if image.missing not in (None, bands.missing):
        raise ValueError(
            f"{image.missing} for pixels without data, expected {bands.missing}; write one value"
        )
    return image


def choose(image: Pixels, channels: Channels) -> Pixels:
    """Keep the bands of `channels`; raises ValueError if one is not there, or there are more than MOST."""
    count = image.pixels.shape[2]
    if channels == "all":
        if count > MOST:
            raise ValueError(f"{count} bands, expected at most {MOST}; list some in dataset.channels")
        return image
    chosen = [_number(channel, image, count) for channel in channels]
    names = tuple(image.names[number] for number in chosen)
    return image._replace(pixels=np.ascontiguousarray(image.pixels[..., chosen]), names=names)


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
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.subtract(pixels, mean, dtype=np.float32)
        np.divide(values, deviation, out=values)
    if pixels.dtype.kind == "u" and bands.missing is None:
        return values
    return np.where(has_data(pixels, bands.missing) & np.isfinite(values), values, np.float32(0))


def has_data(pixels: np.ndarray, missing: float | None) -> np.ndarray:
    """Whether each value is finite and not `missing`; a bool for each."""
    known = np.isfinite(pixels)
    return known if missing is None else known & (pixels != missing)


def places(bands: Bands, show: Sequence[int | str] | None) -> list[int]:
    """The positions of the one or three bands to show; None: the first three, or the first alone.

    show: names, or numbers from 1 if no band is called so. Raises ValueError if a band does not exist.
    """
    if show is None:
        return [0, 1, 2] if len(bands.names) >= 3 else [0]
    found = []
    for band in show:
        if str(band) in bands.names:
            found.append(bands.names.index(str(band)))
        elif isinstance(band, int) and 1 <= band <= len(bands.names):
            found.append(band - 1)
        else:
            raise ValueError(
                f"dataset.show names the band {band}, but the images have {', '.join(bands.names)}"
            )
    return found


def composite(pixels: np.ndarray, bands: Bands, show: Sequence[int | str] | None) -> np.ndarray:
    """(H, W, C) of stored values to (H, W, 3) uint8: each band between its levels, black without data."""
    chosen = places(bands, show)
    low, high = np.array([bands.levels[place] for place in chosen]).T
    values = np.where(has_data(pixels, bands.missing)[..., chosen], pixels[..., chosen], low)
    scaled = np.clip((values - low) / np.where(high > low, high - low, 1), 0, 1)
    return np.repeat((255 * scaled).round().astype(np.uint8), 3 // len(chosen), axis=2)


def described(bands: Bands, show: Sequence[int | str] | None) -> str:
    """What pictures show, in words."""
    names = [bands.names[place] for place in places(bands, show)]
    if len(names) == 1:
        return f"band {names[0]} in gray"
    return f"bands {', '.join(names)} as red, green and blue"
