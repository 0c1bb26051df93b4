"""Colour operations, flip and normalisation of a batch of crops on the training device, as drawn by `cl.data.views`.

On a GPU the whole batch at once (`cl.data.augment_gpu`); on the CPU image by image, as a batch would only spill the cache, with OpenCV,
which takes an image as it lies in memory. Both do the arithmetic of torchvision's functional transforms on float images.
"""

import math

import cv2
import numpy as np
import torch
from torch import Tensor

from cl.data import augment_gpu as colour
from cl.data.views import FACTORS, FLIP, GRAY, JITTER, ORDER, SIGMA, SOLARIZE, View

LUMA = np.tile(
    np.array([0.2989, 0.587, 0.114], np.float32), (3, 1)
)  # of ITU-R 601, as torchvision, for each channel
cv2.setNumThreads(1)  # an image is too little work to be shared


def augment(images: Tensor, colour_params: Tensor, view: View, *, mean: Tensor, std: Tensor) -> Tensor:
    """Flip, the operations of `view` in its order, normalise.

    Args:
        images: (N, 3, H, W) uint8, channels-last.
        colour_params: (N, DRAWS) of `cl.views.draw_colour_params`, on the host.
        mean, std: (3, 1, 1) of RGB in [0, 1].

    Returns:
        (N, 3, H, W) float32, channels-last.
    """
    if images.device.type != "cpu":
        x = colour.recolour(images.contiguous().float().div_(255), colour_params, view)
        return x.sub_(mean).div_(std).contiguous(memory_format=torch.channels_last)
    out = np.empty((len(images), *images.shape[2:], 3), np.float32)
    normalise = np.hstack(
        [np.diag(1 / std.flatten().numpy()), (-mean / std).reshape(3, 1).numpy()]
    )  # (3, 4), affine
    for image, row, target in zip(
        images.permute(0, 2, 3, 1).numpy(), colour_params.tolist(), out, strict=True
    ):
        cv2.transform(recolour(image, row, view), normalise, dst=target)
    return torch.from_numpy(out).permute(0, 3, 1, 2)


def recolour(image: np.ndarray, colour_params: list[float], view: View) -> np.ndarray:
    """One image (H, W, 3) uint8, flipped and with the operations of `view` in its order, float32 in [0, 1]."""
    x = np.multiply(
        cv2.flip(image, 1) if colour_params[FLIP] else image, np.float32(1 / 255), dtype=np.float32, order="C"
    )
    for operation in view.order:
        if operation == "jitter" and colour_params[JITTER]:
            for number in colour_params[ORDER]:
                x = JITTERS[int(number)](x, colour_params[FACTORS][int(number)])
        elif operation == "grayscale" and colour_params[GRAY]:
            x = cv2.transform(x, LUMA)
        elif operation == "blur" and colour_params[SIGMA]:
            x = blur(x, colour_params[SIGMA], view.blur.kernel)
        elif operation == "solarize" and colour_params[SOLARIZE]:
            x = np.where(x >= 0.5, 1 - x, x)
    return x


def brightness(x: np.ndarray, factor: float) -> np.ndarray:
    """Blend with black; in place, as the others."""
    return _clip(np.multiply(x, factor, out=x))


def contrast(x: np.ndarray, factor: float) -> np.ndarray:
    """Blend with the mean of the gray image."""
    gray = float(LUMA[0] @ cv2.mean(x)[:3])
    return _clip(np.add(np.multiply(x, factor, out=x), (1 - factor) * gray, out=x))


def saturation(x: np.ndarray, factor: float) -> np.ndarray:
    """Blend with the gray image."""
    return _clip(cv2.transform(x, factor * np.eye(3, dtype=np.float32) + (1 - factor) * LUMA))


def hue(x: np.ndarray, shift: float) -> np.ndarray:
    """Turn the hue by `shift` of a full circle, in HSV."""
    hsv = cv2.cvtColor(x, cv2.COLOR_RGB2HSV)  # hue in degrees; beyond 360 it is taken back, below 0 it is not
    return cv2.cvtColor(
        cv2.add(hsv, np.array([360 * (shift % 1), 0, 0, 0]), dst=hsv), cv2.COLOR_HSV2RGB, dst=x
    )


JITTERS = (brightness, contrast, saturation, hue)


def blur(x: np.ndarray, sigma: float, kernel: int) -> np.ndarray:
    """Gaussian blur with reflected borders; sigma in pixels. Taps beyond 6 sigma would not change a float32."""
    taps = min(kernel, 2 * math.ceil(6 * sigma) + 1)
    return cv2.GaussianBlur(x, (taps, taps), sigma, borderType=cv2.BORDER_REFLECT_101)


def _clip(x: np.ndarray) -> np.ndarray:
    return np.clip(x, 0, 1, out=x)
