"""Colour jitter as two Triton kernels: the images are read twice and written once."""
# mypy: allow-untyped-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from cl.data.views import ColourParams

BLOCK = 1024  # pixels per program
BRIGHTNESS, CONTRAST, HUE = map(tl.constexpr, (0, 1, 3))  # numbers in `ColourParams.jitter_order`


def jitter(x: Tensor, params: ColourParams[Tensor]) -> Tensor:
    """As `cl.data.augment_gpu.jitter`, for images in any order; overwrites `x`, or a contiguous copy.

    Only contrast needs a mean: of the gray image after the operations before contrast.
    """
    order = torch.stack(params.jitter_order).long()  # (4, N)
    factors = torch.stack(params.factors).gather(0, order)
    order = order.where(params.jitter > 0, -1)
    x = x.contiguous()
    pixels = x[0, 0].numel()
    grid = len(x), triton.cdiv(pixels, BLOCK)
    gray = x.new_empty(grid)
    before_contrast = order.masked_fill((order == CONTRAST.value).cumsum(0) > 0, -1)
    _measure[grid](x, before_contrast, factors, gray, len(x), pixels, BLOCK)
    _change[grid](x, order, factors, gray.sum(1) / pixels, len(x), pixels, BLOCK)
    return x


@triton.jit
def _measure(x, order, factors, gray, images, pixels, block_size: tl.constexpr):
    """Sum the gray of a block of pixels before contrast."""
    image, block = tl.program_id(0), tl.program_id(1)
    place = block * block_size + tl.arange(0, block_size)
    red, green, blue = _load(x, image, place, pixels)
    red, green, blue = _apply(red, green, blue, order + image, factors + image, 0.0, images)
    sums = tl.sum(_luma(red, green, blue))  # pixels beyond the image stay black
    tl.store(gray + image * tl.num_programs(1) + block, sums)


@triton.jit
def _change(x, order, factors, means, images, pixels, block_size: tl.constexpr):
    """Apply all operations to a block of pixels."""
    image, block = tl.program_id(0), tl.program_id(1)
    place = block * block_size + tl.arange(0, block_size)
    red, green, blue = _load(x, image, place, pixels)
    mean = tl.load(means + image)
    red, green, blue = _apply(red, green, blue, order + image, factors + image, mean, images)
    target = x + image.to(tl.int64) * 3 * pixels + place
    tl.store(target, red, place < pixels)
    tl.store(target + pixels, green, place < pixels)
    tl.store(target + 2 * pixels, blue, place < pixels)


@triton.jit
def _load(x, image, place, pixels):
    source = x + image.to(tl.int64) * 3 * pixels + place
    red = tl.load(source, place < pixels, 0.0)
    green = tl.load(source + pixels, place < pixels, 0.0)
    return red, green, tl.load(source + 2 * pixels, place < pixels, 0.0)


@triton.jit
def _apply(red, green, blue, order, factors, mean, images):
    """Apply the operations of one image; -1 in `order` means none. `images` is the stride between places."""
    for number in tl.static_range(4):
        operation = tl.load(order + number * images)
        factor = tl.load(factors + number * images)
        if operation == HUE:
            red, green, blue = _hue(red, green, blue, factor)
        elif operation >= 0:
            other = tl.where(operation == CONTRAST, mean, _luma(red, green, blue))
            other = tl.where(operation == BRIGHTNESS, 0.0, (1 - factor) * other)
            red = _clip(factor * red + other)
            green = _clip(factor * green + other)
            blue = _clip(factor * blue + other)
    return red, green, blue


@triton.jit
def _luma(red, green, blue):
    return 0.2989 * red + 0.587 * green + 0.114 * blue


@triton.jit
def _clip(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _hue(red, green, blue, shift):
    value = tl.maximum(red, tl.maximum(green, blue))
    chroma = value - tl.minimum(red, tl.minimum(green, blue))
    divisor = tl.where(chroma > 0, chroma, 1.0)
    angle = tl.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor)
    angle = tl.where(value == red, (green - blue) / divisor, angle) + 6 * shift
    red = _channel(value, chroma, angle + 5)
    return red, _channel(value, chroma, angle + 3), _channel(value, chroma, angle + 1)


@triton.jit
def _channel(value, chroma, k):
    k -= 6 * tl.floor(k / 6)
    return value - chroma * _clip(tl.minimum(k, 4 - k))
