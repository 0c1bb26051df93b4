"""Random views of an image: workers crop and resize, and draw the parameters of the colour operations.

Every random number of a view is a function of (seed, epoch, sample, view), so views do not depend on the
number of workers or processes, or on resuming.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import AfterValidator, Field, model_validator

from cl.images.bands import Bands, standardise
from cl.runtime.base_config import BaseConfig, Range, ascending

Value = TypeVar("Value")
UpTo1 = Annotated[float, Field(ge=0, le=1)]
Above0 = Annotated[float, Field(gt=0, le=1)]
ASCENDING = AfterValidator(ascending)

# As torch.nn.functional.interpolate with antialias=True, but with preallocated output.
RESIZE = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa.out,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa.out,
}
OPERATIONS = ("jitter", "grayscale", "blur", "solarize")
ATTEMPTS = 10  # of torchvision's RandomResizedCrop
DRAWN = 64  # random numbers drawn at a time; most views need fewer
LONGEST = 64  # the longest image, in short sides, that is resized as a whole


class Jitter(BaseConfig):
    """Colour jitter as in torchvision with probability `p`; its four operations come in random order."""

    p: float = Field(ge=0, le=1)
    brightness: float = Field(ge=0, le=1)
    contrast: float = Field(ge=0, le=1)
    saturation: float = Field(ge=0, le=1)
    hue: float = Field(ge=0, le=0.5)


class Blur(BaseConfig):
    """Gaussian blur with probability `p`: sigma uniform in a range (pixels), `kernel` taps (odd)."""

    p: float = Field(ge=0, le=1)
    sigma: Range
    kernel: int = Field(gt=0)

    @model_validator(mode="after")
    def _odd(self) -> "Blur":
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel={self.kernel} must be an odd number of taps")
        return self


class Jigsaw(BaseConfig):
    """Patches of one random crop per image, each a separate view, in random order (PIRL).

    The crop of `side` pixels is cut into `grid` x `grid` cells; a patch is a random window in its cell.
    """

    grid: int = Field(gt=1)
    side: int = Field(gt=0, description="side of the crop, pixels")

    @property
    def cell(self) -> int:
        """Side of a cell, pixels."""
        return self.side // self.grid

    @model_validator(mode="after")
    def _whole_cells(self) -> "Jigsaw":
        if self.side % self.grid:
            raise ValueError(f"side={self.side} must be a multiple of grid={self.grid}")
        return self


class BandChanges(BaseConfig):
    """Changes of bands, which have no colours to jitter; offsets and noise are in deviations of each band.

    p: probability that a view gets gains, offsets, saturation and noise.
    gain, offset: all bands times 1 + g, plus o; uniform in [-gain, gain] and [-offset, offset].
    band_gain, band_offset: the same for each band by itself.
    saturation: differences between the bands of a pixel times 1 + s, uniform in [-saturation, saturation].
    hue: each wave in these differences, along the circle of bands, moves by the same part of its period,
        uniform in [-hue, hue]; of three bands, this is a rotation about gray.
    noise: the largest standard deviation of Gaussian noise; each view has its own, uniform from 0.
    grayscale: probability that each band becomes the mean over bands.
    dropout: probability that a band becomes its mean; one band always remains.
    turn: probability of one to three quarter turns, for images that may be seen from any side.
    """

    p: UpTo1
    gain: UpTo1
    offset: float = Field(ge=0)
    band_gain: UpTo1
    band_offset: float = Field(ge=0)
    saturation: UpTo1
    hue: float = Field(ge=0, le=0.5)
    noise: float = Field(ge=0)
    grayscale: UpTo1
    dropout: UpTo1
    turn: UpTo1


class View(BaseConfig):
    """One kind of view, made `count` times per image: crop and flip, then the operations in `order`.

    bands: changes of images of bands, which only these and the blur change.
    photometric: probability of a fifth operation, which `order` must then name: posterize, sharpen, solarize
        and stretch the contrast, in this order (PIRL).
    jigsaw: the views are `count` patches of side `size`, from one crop that covers `area` of the image.
    """

    count: int = Field(gt=0)
    size: int = Field(gt=0, description="side of the crop, pixels")
    area: Annotated[tuple[UpTo1, Above0], ASCENDING] = Field(
        description="fraction of the image that a crop covers"
    )
    interpolation: Literal["bilinear", "bicubic"]
    flip: float = Field(ge=0, le=1, description="probability")
    jitter: Jitter
    grayscale: float = Field(ge=0, le=1, description="probability")
    blur: Blur
    solarize: float = Field(ge=0, le=1, description="probability; threshold 0.5")
    order: list[str]
    bands: BandChanges | None = None
    photometric: float | None = Field(None, ge=0, le=1)
    jigsaw: Jigsaw | None = None

    @model_validator(mode="after")
    def _operations_and_patches_fit(self) -> "View":
        operations = [*OPERATIONS, *([] if self.photometric is None else ["photometric"])]
        if sorted(self.order) != sorted(operations):
            raise ValueError(f"order={self.order} must name each of {', '.join(operations)} exactly once")
        cut = self.jigsaw
        if cut and self.count != cut.grid**2:
            raise ValueError(
                f"jigsaw.grid={cut.grid} gives {cut.grid**2} patches, but count={self.count}; "
                "choose one to fit the other"
            )
        if cut and self.size > cut.cell:
            raise ValueError(
                f"patches of size={self.size} do not fit into cells of {cut.cell} px, "
                "jigsaw.side / jigsaw.grid; choose a smaller size"
            )
        return self


def _one_per_image(view: View) -> View:
    if view.count != 1:
        raise ValueError(f"count={view.count} must be 1, as only one view of an image is used")
    return view


SingleView = Annotated[View, AfterValidator(_one_per_image)]


class ColourParams(NamedTuple, Generic[Value]):
    """Parameters of the colour operations of one view, in the order of the stored rows.

    A field is a number for one image, or a column (N,) for a batch. Flags are 0 or 1. `first` to `fourth` are
    the jitter operations in order: brightness is 0, contrast 1, saturation 2, hue 3.
    """

    flip: Value  # flag
    jitter: Value  # flag
    first: Value
    second: Value
    third: Value
    fourth: Value
    brightness: Value  # factor
    contrast: Value  # factor
    saturation: Value  # factor
    hue: Value  # shift, as a fraction of a full circle
    grayscale: Value  # flag
    sigma: Value  # of the blur, pixels; 0: no blur
    solarize: Value  # flag
    photometric: Value  # flag
    bits: Value  # kept by posterizing
    sharpness: Value  # factor
    threshold: Value  # of the photometric operation's solarizing

    @property
    def jitter_order(self) -> tuple[Value, Value, Value, Value]:
        return self.first, self.second, self.third, self.fourth

    @property
    def factors(self) -> tuple[Value, Value, Value, Value]:
        return self.brightness, self.contrast, self.saturation, self.hue


DRAWS = len(ColourParams._fields)  # numbers per view


class RandomNumbers:
    """The random numbers of a view: uniform in [0, 1), a function of (seed, epoch, sample, view).

    The seed is the key of NumPy's Philox; epoch, sample and view are its counter. All objects share one
    Philox, because creating one takes longer than drawing. Each keeps its numbers, so several can be in use.
    """

    __slots__ = ("_numbers", "_place", "_used")

    def __init__(self, seed: int, epoch: int, sample: int, view: int) -> None:
        self._place = seed, epoch, sample, view
        self._numbers = _drawn(0, seed, epoch, sample, view)
        self._used = 0

    def take(self, count: int) -> list[float]:
        """The next `count` numbers."""
        start, self._used = self._used, self._used + count
        while self._used > len(self._numbers):
            self._numbers += _drawn(len(self._numbers), *self._place)
        return self._numbers[start : self._used]


def _drawn(start: int, seed: int, epoch: int, sample: int, view: int) -> list[float]:
    """DRAWN numbers from `start` on, a multiple of 4: each step of the counter gives four."""
    generator, philox, state, counter = _philox(seed)
    counter[:] = start // 4, epoch, sample, view
    philox.state = state
    return generator.random(DRAWN).tolist()


@lru_cache(maxsize=4)
def _philox(seed: int) -> tuple[np.random.Generator, np.random.Philox, Any, np.ndarray]:
    """A generator, its Philox, a state to restore, and the counter in this state."""
    philox = np.random.Philox(key=seed)
    state: Any = philox.state
    return np.random.Generator(philox), philox, state, state["state"]["counter"]


def random_crop_box(
    size: Sequence[int], area: tuple[float, float], rng: RandomNumbers
) -> tuple[int, int, int, int]:
    """left, top, right, bottom of a random crop of ratio 3/4 to 4/3; central if no attempt fits."""
    height, width = size
    numbers = rng.take(4 * ATTEMPTS)  # also for attempts that are not needed
    for first in range(0, 4 * ATTEMPTS, 4):
        scale, ratio, x, y = numbers[first : first + 4]
        covered = width * height * (area[0] + (area[1] - area[0]) * scale)
        aspect = math.exp(math.log(3 / 4) + math.log(16 / 9) * ratio)
        w = round(math.sqrt(covered * aspect))
        h = round(math.sqrt(covered / aspect))
        if 0 < w <= width and 0 < h <= height:
            left = int(x * (width - w + 1))
            top = int(y * (height - h + 1))
            return left, top, left + w, top + h
    w = min(width, round(height * 4 / 3))
    h = min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def resize(
    pixels: np.ndarray,
    box: tuple[int, int, int, int],
    view: View,
    out: np.ndarray,
    bands: Bands | None = None,
) -> None:
    """Crop `pixels` to the box; resize with antialiasing into `out` (1, S, S, C).

    RGB (H, W, 3) stays uint8; bands (H, W, C) are standardised to float32.
    """
    left, top, right, bottom = box
    part = pixels[None, top:bottom, left:right]
    # Resizing contiguous memory is three times faster.
    part = standardise(part, bands) if bands else part.copy()
    source, target = (torch.from_numpy(array.transpose(0, 3, 1, 2)) for array in (part, out))
    RESIZE[view.interpolation](source, list(target.shape[2:]), False, None, None, out=target)


def cut_patches(pixels: np.ndarray, view: View, rng: RandomNumbers, patches: list[np.ndarray]) -> None:
    """Resize one crop, and write the patches of a jigsaw in random order, each (size, size, 3) uint8."""
    cut = view.jigsaw
    assert cut is not None
    crop = np.empty((1, cut.side, cut.side, 3), np.uint8)
    resize(pixels, random_crop_box(pixels.shape[:2], view.area, rng), view, crop)
    sort_keys, *offsets = (rng.take(view.count) for _ in range(3))
    places = cut.cell - view.size + 1  # of a window in its cell, per direction
    for patch, cell in zip(patches, sorted(range(view.count), key=sort_keys.__getitem__), strict=True):
        row, column = divmod(cell, cut.grid)
        top, left = (int(places * offset[cell]) for offset in offsets)
        part = crop[0, row * cut.cell + top :, column * cut.cell + left :]
        patch[:] = part[: view.size, : view.size]


def draw_colour_params(view: View, rng: RandomNumbers) -> ColourParams[float]:
    """Random parameters of the colour operations of `view`.

    Always takes 14 random numbers, and 4 more for the photometric operation: bits from 4 to 8, sharpness from
    0.1 to 1.9 and threshold from 0 to 1 (PIRL's code).
    """
    flip, jitter, grayscale, blur, sigma, solarize, *factors = rng.take(14)
    brightness, contrast, saturation, hue, *sort_keys = [2 * factor - 1 for factor in factors]
    low, high = view.blur.sigma
    photometric = [0.0] * 4
    if view.photometric is not None:
        flag, bits, sharpness, threshold = rng.take(4)
        photometric = [flag < view.photometric, 4 + int(5 * bits), 0.1 + (1.9 - 0.1) * sharpness, threshold]
    numbers: list[float] = [
        flip < view.flip,
        jitter < view.jitter.p,
        *sorted(range(4), key=sort_keys.__getitem__),
        1 + view.jitter.brightness * brightness,
        1 + view.jitter.contrast * contrast,
        1 + view.jitter.saturation * saturation,
        view.jitter.hue * hue,
        grayscale < view.grayscale,
        low + (high - low) * sigma if blur < view.blur.p else 0,
        solarize < view.solarize,
        *photometric,
    ]
    return ColourParams(*numbers)


def centre(pixels: np.ndarray, short_side: int, side: int) -> np.ndarray:
    """The evaluation view (side, side, C): resize to `short_side` with antialiasing, centre crop.

    Only the middle of an extremely long image is resized: the rest would take gigabytes and be cropped.
    """
    height, width, _ = pixels.shape
    longest = LONGEST * min(height, width)
    top, left = (max(0, length - longest) // 2 for length in (height, width))
    pixels = pixels[top : height - top, left : width - left]
    height, width, _ = pixels.shape
    size = [short_side * length // min(height, width) for length in (height, width)]
    image = torch.from_numpy(np.require(pixels, requirements="W"))[None].permute(0, 3, 1, 2)
    resized = F.interpolate(image, size, mode="bilinear", antialias=True).permute(0, 2, 3, 1)[0].numpy()
    top, left = (round((length - side) / 2) for length in size)
    return resized[top : top + side, left : left + side]
