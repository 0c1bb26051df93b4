"""Flip, colour operations and normalisation of a batch of crops on the training device.

A GPU processes the whole batch at once (`cl.data.augment_gpu`). On the CPU, OpenCV processes one image at a
time, in its memory layout, because a batch does not fit the cache. Both equal torchvision's functional
transforms on float images, with parameters drawn by `cl.data.views`.
"""

import math

import cv2
import numpy as np
import torch
from torch import Tensor

from cl.data import augment_gpu
from cl.data.views import ColourParams, View

# ITU-R 601, as in torchvision, for each channel.
LUMA = np.tile(np.array([0.2989, 0.587, 0.114], np.float32), (3, 1))
# Pillow's SMOOTH filter.
SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
cv2.setNumThreads(1)  # one image is too little work for several threads


def augment(
    images: Tensor, colour_params: Tensor, view: View, *, mean: Tensor, std: Tensor, fused: bool = False
) -> Tensor:
    """Flip, apply the operations of `view` in its order, normalise.

    Args:
        images: (N, 3, H, W) uint8, channels-last.
        colour_params: (N, DRAWS) float32 on the CPU; each row is a `cl.data.views.ColourParams`.
        mean, std: (3, 1, 1) of RGB in [0, 1].
        fused: jitter by `cl.data._fused_jitter`, on a GPU or, in tests, in Triton's interpreter.

    Returns:
        (N, 3, H, W) float32, channels-last.
    """
    if fused or images.device.type != "cpu":
        return augment_gpu.augment(images, colour_params, view, mean=mean, std=std, fused=fused)
    scale = np.diag(1 / std.flatten().numpy())
    shift = (-mean / std).reshape(3, 1).numpy()
    normalise = np.hstack([scale, shift])  # (3, 4), an affine map of the channels
    pixels = images.permute(0, 2, 3, 1).numpy()
    out = np.empty(pixels.shape, np.float32)
    for image, row, target in zip(pixels, colour_params.tolist(), out, strict=True):
        cv2.transform(recolour(image, ColourParams(*row), view), normalise, dst=target)
    return torch.from_numpy(out).permute(0, 3, 1, 2)


def recolour(image: np.ndarray, params: ColourParams[float], view: View) -> np.ndarray:
    """Flip an image (H, W, 3) uint8 and apply the operations of `view` in its order; float32 in [0, 1]."""
    flipped = cv2.flip(image, 1) if params.flip else image
    x = np.multiply(flipped, np.float32(1 / 255), dtype=np.float32, order="C")
    for operation in view.order:
        if operation == "jitter" and params.jitter:
            for number in map(int, params.jitter_order):
                x = JITTERS[number](x, params.factors[number])
        elif operation == "grayscale" and params.grayscale:
            x = cv2.transform(x, LUMA)
        elif operation == "blur" and params.sigma:
            x = blur(x, params.sigma, view.blur.kernel)
        elif operation == "solarize" and params.solarize:
            x = solarize(x, 0.5)
        elif operation == "photometric" and params.photometric:
            x = sharpness(posterize(x, int(params.bits)), params.sharpness)
            x = autocontrast(solarize(x, params.threshold))
    return x


def brightness(x: np.ndarray, factor: float) -> np.ndarray:
    """Blend with black; in place, like the operations below."""
    return _clip(np.multiply(x, factor, out=x))


def contrast(x: np.ndarray, factor: float) -> np.ndarray:
    """Blend with the mean of the gray image."""
    gray = float(LUMA[0] @ cv2.mean(x)[:3])
    return _clip(np.add(np.multiply(x, factor, out=x), (1 - factor) * gray, out=x))


def saturation(x: np.ndarray, factor: float) -> np.ndarray:
    """Blend with the gray image."""
    return _clip(cv2.transform(x, factor * np.eye(3, dtype=np.float32) + (1 - factor) * LUMA))


def hue(x: np.ndarray, shift: float) -> np.ndarray:
    """Rotate the hue by `shift` of a full circle, in HSV."""
    hsv = cv2.cvtColor(x, cv2.COLOR_RGB2HSV)  # hue in degrees
    degrees = 360 * (shift % 1)  # non-negative: OpenCV wraps only hues above 360
    hsv = cv2.add(hsv, np.array([degrees, 0, 0, 0]), dst=hsv)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB, dst=x)


JITTERS = (brightness, contrast, saturation, hue)  # in the order of `ColourParams.factors`


def blur(x: np.ndarray, sigma: float, kernel: int) -> np.ndarray:
    """Gaussian blur with reflected borders; sigma in pixels. Beyond 6 sigma, taps do not change a float32."""
    taps = min(kernel, 2 * math.ceil(6 * sigma) + 1)
    return cv2.GaussianBlur(x, (taps, taps), sigma, borderType=cv2.BORDER_REFLECT_101)


def solarize(x: np.ndarray, threshold: float) -> np.ndarray:
    """Invert values of the threshold or more."""
    return np.where(x >= threshold, 1 - x, x)


def posterize(x: np.ndarray, bits: int) -> np.ndarray:
    """Round down to 2^bits levels from 0 to 1 - 2^-bits."""
    levels = 2**bits
    return np.minimum(np.floor(x * levels), levels - 1) / levels


def sharpness(x: np.ndarray, factor: float) -> np.ndarray:
    """Blend with the image smoothed by SMOOTH, except for its outermost pixels."""
    smooth = x.copy()
    smooth[1:-1, 1:-1] = cv2.filter2D(x, -1, SMOOTH)[1:-1, 1:-1]
    return _clip(factor * x + (1 - factor) * smooth)


def autocontrast(x: np.ndarray) -> np.ndarray:
    """Stretch each channel to the range from 0 to 1; a channel of one value stays as it is."""
    low, high = x.min((0, 1)), x.max((0, 1))
    flat = low == high
    return _clip((x - np.where(flat, 0, low)) / np.where(flat, 1, high - low))


def _clip(x: np.ndarray) -> np.ndarray:
    return np.clip(x, 0, 1, out=x)
