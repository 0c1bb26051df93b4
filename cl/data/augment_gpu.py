"""Flip and colour operations on a batch on the training device, each image with its own parameters.

They compute what torchvision's functional transforms compute on float images, with parameters drawn by
`cl.data.views`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from cl.data.views import ColourParams, View


def recolour(x: Tensor, colour_params: Tensor, view: View) -> Tensor:
    """Flip, then apply the operations of `view` in its order.

    Args:
        x: (N, 3, H, W) float32 in [0, 1]; overwritten.
        colour_params: (N, DRAWS) float32 on the CPU; each row is a `cl.data.views.ColourParams`.
    """
    params = ColourParams(*colour_params.unbind(1))  # of (N,)
    x = _where(params.flip, x, lambda part: part.flip(-1))
    for operation in view.order:
        if operation == "jitter":
            x = _jitter(x, params)
        elif operation == "grayscale":
            x = _where(params.grayscale, x, lambda part: _gray(part).expand_as(part))
        elif operation == "blur":
            x = _where(params.sigma, x, lambda part, sigma: blur(part, sigma, view.blur.kernel), params.sigma)
        elif operation == "solarize":
            x = _where(params.solarize, x, lambda part: solarize(part, 0.5))
        else:
            columns = params.bits, params.sharpness, params.threshold
            x = _where(params.photometric, x, _photometric, *columns)
    return x


def _where(flags: Tensor, x: Tensor, operation, *parameters: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    """Apply `operation`, in place, to the images whose flag is not 0, with their rows of the parameters."""
    rows = flags.nonzero()[:, 0]
    if len(rows):
        values = [p[rows].to(x.device) for p in parameters]
        rows = rows.to(x.device)
        x[rows] = operation(x[rows], *values)
    return x


def _jitter(x: Tensor, params: ColourParams[Tensor]) -> Tensor:
    for chosen in params.jitter_order:  # (N,)
        for number, (operation, factors) in enumerate(zip(JITTERS, params.factors, strict=True)):
            x = _where((params.jitter != 0) & (chosen == number), x, operation, factors)
    return x


def _photometric(x: Tensor, bits: Tensor, factor: Tensor, threshold: Tensor) -> Tensor:
    x = sharpness(posterize(x, bits), factor)
    return autocontrast(solarize(x, threshold[:, None, None, None]))


def _gray(x: Tensor) -> Tensor:
    """(N, 1, H, W): luma of ITU-R 601, as in torchvision."""
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
    """Rotate the hue by `shift` (N,) of a full circle, in HSV.

    With k = (n + 6 hue) mod 6 and n = 5, 3, 1 for red, green, blue, a channel is V - V S clamp(min(k, 4 - k),
    0, 1).
    """
    red, green, blue = x.split(1, 1)
    value = x.amax(1, keepdim=True)
    chroma = value - x.amin(1, keepdim=True)  # V S
    divisor = torch.where(chroma > 0, chroma, 1)
    from_green = 2 + (blue - red) / divisor
    from_blue = 4 + (red - green) / divisor
    angle = torch.where(value == green, from_green, from_blue)
    angle = torch.where(value == red, (green - blue) / divisor, angle)  # in sixths of a circle
    angle = angle + 6 * shift[:, None, None, None]
    k = (angle + x.new_tensor([5.0, 3.0, 1.0]).view(1, 3, 1, 1)) % 6
    return value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


JITTERS = (brightness, contrast, saturation, hue)  # in the order of `ColourParams.factors`


def blur(x: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Separable Gaussian blur with reflected borders; sigma (N,) in pixels."""
    n, c, h, w = x.shape
    taps = torch.arange(kernel, device=x.device, dtype=x.dtype) - kernel // 2
    weight = torch.exp(-0.5 * (taps / sigma[:, None]) ** 2)
    weight = weight / weight.sum(1, keepdim=True)
    weight = weight.repeat_interleave(c, 0)[:, None, None]  # (N C, 1, 1, kernel)
    padded = F.pad(x, [kernel // 2] * 4, mode="reflect").reshape(1, n * c, h + kernel - 1, w + kernel - 1)
    rows = F.conv2d(padded, weight, groups=n * c)
    return F.conv2d(rows, weight.transpose(2, 3), groups=n * c).view(n, c, h, w)


def solarize(x: Tensor, threshold: Tensor | float) -> Tensor:
    """Invert values of the threshold or more."""
    return torch.where(x >= threshold, 1 - x, x)


def posterize(x: Tensor, bits: Tensor) -> Tensor:
    """Round down to 2^bits levels from 0 to 1 - 2^-bits; bits (N,)."""
    levels = bits.exp2()[:, None, None, None]
    return torch.minimum((x * levels).floor_(), levels - 1) / levels


def sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image smoothed by Pillow's SMOOTH filter, except for its outermost pixels."""
    weight = x.new_tensor([[1, 1, 1], [1, 5, 1], [1, 1, 1]]).div_(13).expand(x.shape[1], 1, 3, 3)
    smooth = x.clone()
    smooth[:, :, 1:-1, 1:-1] = F.conv2d(x, weight, groups=x.shape[1])
    return _blend(x, smooth, factor)


def autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel to the range from 0 to 1; a channel of one value stays as it is."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    flat = low == high
    return ((x - low.where(~flat, 0)) / (high - low).where(~flat, 1)).clamp_(0, 1)
