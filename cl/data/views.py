"""Random views of an image: what the data workers do (crop and resize), and what they draw for the device.

Every random number of a view comes from (seed, epoch, sample, view) alone, so a view does not depend on the number of
workers or processes, nor on where a run was resumed.
"""

import math
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator

from cl.runtime.base_config import BaseConfig, Range

DRAWS = 13  # numbers a view that `cl.data.augment` needs; where `draw_colour_params` puts them:
FLIP, JITTER, ORDER, FACTORS, GRAY, SIGMA, SOLARIZE = 0, 1, slice(2, 6), slice(6, 10), 10, 11, 12
# What torch.nn.functional.interpolate calls with antialias=True, but into memory that is there.
RESIZE = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa.out,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa.out,
}
OPERATIONS = ("jitter", "grayscale", "blur", "solarize")
ATTEMPTS = 10  # of torchvision's RandomResizedCrop


class Jitter(BaseConfig):
    """Colour jitter with torchvision's meaning, applied with probability `p`, its four parts in random order."""

    p: float = Field(ge=0, le=1)
    brightness: float = Field(ge=0, le=1)
    contrast: float = Field(ge=0, le=1)
    saturation: float = Field(ge=0, le=1)
    hue: float = Field(ge=0, le=0.5)


class Blur(BaseConfig):
    """Gaussian blur with probability `p`; sigma in pixels is drawn uniformly, the kernel has `kernel` taps (odd)."""

    p: float = Field(ge=0, le=1)
    sigma: Range
    kernel: int = Field(gt=0)

    @model_validator(mode="after")
    def _odd(self) -> "Blur":
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel={self.kernel} has no middle; choose an odd number of taps")
        return self


class View(BaseConfig):
    """One kind of view, `count` of which are made of an image: crop and flip, then the four others in the stated order."""

    count: int = Field(gt=0)
    size: int = Field(gt=0, description="side of the crop, pixels")
    area: Range = Field(description="fraction of the image that a crop covers")
    interpolation: Literal["bilinear", "bicubic"]
    flip: float = Field(ge=0, le=1, description="probability")
    jitter: Jitter
    grayscale: float = Field(ge=0, le=1, description="probability")
    blur: Blur
    solarize: float = Field(ge=0, le=1, description="probability; threshold 0.5")
    order: list[str]

    @model_validator(mode="after")
    def _each_once(self) -> "View":
        if sorted(self.order) != sorted(OPERATIONS):
            raise ValueError(f"order={self.order} does not name each of {', '.join(OPERATIONS)} once")
        return self


def generator(seed: int, epoch: int, sample: int, view: int) -> np.random.Generator:
    """A stream of its own for each (seed, epoch, sample, view): Philox, seed in the key, the rest in the counter.

    The next call with this seed turns the same object to its stream, which takes a quarter of the time of making one.
    """
    stream, state = _stream(seed)
    state["state"]["counter"][:] = 0, epoch, sample, view
    stream.bit_generator.state = state
    return stream


@lru_cache(maxsize=4)
def _stream(seed: int) -> tuple[np.random.Generator, Any]:
    philox = np.random.Philox(key=seed)
    return np.random.Generator(philox), philox.state


def random_crop_box(
    pixels: np.ndarray, area: tuple[float, float], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """left, top, right, bottom of a crop of random area and aspect ratio 3/4 to 4/3; the centre if ten draws do not fit."""
    height, width, _ = pixels.shape
    for scale, ratio, x, y in rng.random((ATTEMPTS, 4)).tolist():
        covered = width * height * (area[0] + (area[1] - area[0]) * scale)
        aspect = math.exp(math.log(3 / 4) + math.log(16 / 9) * ratio)
        w, h = round(math.sqrt(covered * aspect)), round(math.sqrt(covered / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def resize(pixels: np.ndarray, box: tuple[int, int, int, int], view: View, out: np.ndarray) -> None:
    """Write the part of `pixels` (H, W, 3) uint8 within left, top, right, bottom, antialiased, to `out` (1, size, size, 3)."""
    left, top, right, bottom = box
    part = pixels[None, top:bottom, left:right].copy()  # side by side, which is resized three times faster
    source, target = (torch.from_numpy(array.transpose(0, 3, 1, 2)) for array in (part, out))
    RESIZE[view.interpolation](source, [view.size, view.size], False, None, None, out=target)


def draw_colour_params(view: View, rng: np.random.Generator) -> list[float]:
    """DRAWS numbers: flip, jitter, the jitter's order (4) and factors (4), grayscale, sigma of the blur, solarise.

    Flags are 0 or 1; sigma 0 means no blur. The same amount of randomness is used whatever comes out.
    """
    flip, jitter, gray, blur, sigma, solarize, *factors = rng.random(14).tolist()
    brightness, contrast, saturation, hue, *keys = [2 * factor - 1 for factor in factors]
    low, high = view.blur.sigma
    return [
        flip < view.flip,
        jitter < view.jitter.p,
        *sorted(range(4), key=keys.__getitem__),
        1 + view.jitter.brightness * brightness,
        1 + view.jitter.contrast * contrast,
        1 + view.jitter.saturation * saturation,
        view.jitter.hue * hue,
        gray < view.grayscale,
        low + (high - low) * sigma if blur < view.blur.p else 0,
        solarize < view.solarize,
    ]


def centre(pixels: np.ndarray, short_side: int, side: int) -> np.ndarray:
    """The evaluation's view, (side, side, 3) uint8: short side to `short_side` with antialiasing, then the centre."""
    height, width, _ = pixels.shape
    size = [short_side * length // min(height, width) for length in (height, width)]
    image = torch.from_numpy(np.require(pixels, requirements="W"))[None].permute(0, 3, 1, 2)
    resized = F.interpolate(image, size, mode="bilinear", antialias=True).permute(0, 2, 3, 1)[0].numpy()
    top, left = (round((length - side) / 2) for length in size)
    return resized[top : top + side, left : left + side]
