"""Colour operations on a batch on the training device, each image with its own parameters, drawn by `cl.data.views`.

The arithmetic of torchvision's functional transforms on float images.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from cl.data.views import FACTORS, FLIP, GRAY, JITTER, ORDER, SIGMA, SOLARIZE, View


def recolour(x: Tensor, colour_params: Tensor, view: View) -> Tensor:
    """Flip, then the operations of `view` in its order.

    Args:
        x: (N, 3, H, W) float32 in [0, 1]; overwritten.
        colour_params: (N, DRAWS) of `cl.views.draw_colour_params`, on the host.
    """
    x = _where(x, colour_params[:, FLIP], lambda part: part.flip(-1))
    for operation in view.order:
        if operation == "jitter":
            x = _jitter(x, colour_params)
        elif operation == "grayscale":
            x = _where(x, colour_params[:, GRAY], lambda part: _gray(part).expand_as(part))
        elif operation == "blur":
            x = _where(
                x,
                colour_params[:, SIGMA],
                lambda part, sigma: blur(part, sigma, view.blur.kernel),
                colour_params[:, SIGMA],
            )
        else:
            x = _where(x, colour_params[:, SOLARIZE], lambda part: torch.where(part >= 0.5, 1 - part, part))
    return x


def _where(x: Tensor, flags: Tensor, operation, *parameters: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    """`operation` on the images whose flag is not 0, with their rows of the parameters; in place."""
    rows = flags.nonzero()[:, 0]
    if len(rows):
        values = [p[rows].to(x.device) for p in parameters]
        rows = rows.to(x.device)
        x[rows] = operation(x[rows], *values)
    return x


def _jitter(x: Tensor, colour_params: Tensor) -> Tensor:
    order = colour_params[:, ORDER] + 1  # 0 stands for no operation
    order = order * colour_params[:, JITTER, None]
    for place in range(4):
        for number, operation in enumerate((brightness, contrast, saturation, hue)):
            x = _where(x, order[:, place] == number + 1, operation, colour_params[:, FACTORS][:, number])
    return x


def _gray(x: Tensor) -> Tensor:
    """(N, 1, H, W): luma of ITU-R 601, as torchvision."""
    return 0.2989 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    factor = factor[:, None, None, None]
    return (factor * x + (1 - factor) * other).clamp_(0, 1)


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with black."""
    return _blend(x, torch.zeros_like(x), factor)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean of the gray image."""
    return _blend(x, _gray(x).mean((1, 2, 3), keepdim=True), factor)


def saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the gray image."""
    return _blend(x, _gray(x), factor)


def hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by `shift` (N,) of a full circle, in HSV.

    With k = (n + 6 hue) mod 6 and n = 5, 3, 1 for red, green, blue, a channel is V - V S clamp(min(k, 4 - k), 0, 1).
    """
    red, green, blue = x.split(1, 1)
    top, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    span = top - low
    scaled = torch.where(span > 0, span, 1)
    angle = torch.where(
        top == red,
        (green - blue) / scaled,
        torch.where(top == green, 2 + (blue - red) / scaled, 4 + (red - green) / scaled),
    )  # in sixths of a circle
    angle = angle + 6 * shift[:, None, None, None]
    k = (angle + x.new_tensor([5.0, 3.0, 1.0]).view(1, 3, 1, 1)) % 6
    return top - span * torch.minimum(k, 4 - k).clamp_(0, 1)


def blur(x: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Separable Gaussian blur with reflected borders; sigma (N,) in pixels."""
    n, c, h, w = x.shape
    taps = torch.arange(kernel, device=x.device, dtype=x.dtype) - kernel // 2
    weight = torch.exp(-0.5 * (taps / sigma[:, None]) ** 2)
    weight = (weight / weight.sum(1, keepdim=True)).repeat_interleave(c, 0)[
        :, None, None
    ]  # (N C, 1, 1, kernel)
    padded = F.pad(x, [kernel // 2] * 4, mode="reflect").reshape(1, n * c, h + kernel - 1, w + kernel - 1)
    rows = F.conv2d(padded, weight, groups=n * c)
    return F.conv2d(rows, weight.transpose(2, 3), groups=n * c).view(n, c, h, w)
