"""Flip, colour operations and normalisation of a batch on the training device.

Each image has its own parameters, drawn by `cl.data.views`. The operations equal torchvision's functional
transforms on float images. Flags are masks, so the CPU never waits for the device.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cl.data.views import DRAWS, ColourParams, View
from cl.runtime.machine import to_device

HUE = 3  # its number in `ColourParams.jitter_order`


def augment(
    images: Tensor, colour_params: Tensor, view: View, *, mean: Tensor, std: Tensor, fused: bool = False
) -> Tensor:
    """As `cl.data.augment.augment`, on the device of the images.

    Jitter and blur are expensive, so only the images that need them get them; other operations run on all.
    """
    rows, ends = sorted_by_hue(ColourParams(*colour_params.unbind(1)))
    on_cpu = ColourParams(*colour_params[rows].unbind(1))
    blurred = on_cpu.sigma.nonzero()[:, 0]
    padded = F.pad(blurred, (0, len(images) - len(blurred)))
    *columns, padded, rows = to_device(torch.stack([*on_cpu, padded, rows]), images.device)  # one copy
    params, blurred, rows = ColourParams(*columns), padded[: len(blurred)].long(), rows.long()
    images = images.index_select(0, rows)
    x = _choose(params.flip, images.flip(-1), images) / 255
    for operation in view.order:
        if operation == "blur" and len(blurred):
            changed = blur(x[blurred], params.sigma[blurred], view.blur.kernel)
            x = x.index_copy(0, blurred, changed)
        elif operation == "jitter" and ends[-1]:
            x = fused_jitter(x, params) if fused else jitter(x, params, ends)
        elif operation in OPERATIONS and getattr(on_cpu, operation).any():
            x = _choose(getattr(params, operation), OPERATIONS[operation](x, params), x)
    normalised = torch.empty_like(x, memory_format=torch.channels_last)
    return normalised.index_copy_(0, rows, x.sub_(mean).div_(std))


def sorted_by_hue(params: ColourParams[Tensor]) -> tuple[Tensor, list[int]]:
    """Sort the images by the place of hue in their jitter, those without jitter last.

    Returns:
        The order (N,), and the position in it after the last image of each of the four places.
    """
    order = torch.stack(params.jitter_order)  # (4, N)
    places = (order == HUE).int().argmax(0).where(params.jitter > 0, len(order))
    ends = places.bincount(minlength=len(order)).cumsum(0)
    return places.argsort(stable=True), ends[: len(order)].tolist()


def _per_image(values: Tensor) -> Tensor:
    """(N,) to (N, 1, 1, 1)."""
    return values[:, None, None, None]


def _choose(flags: Tensor, changed: Tensor, x: Tensor) -> Tensor:
    """The changed images where the flag (N,) is set."""
    return torch.where(_per_image(flags > 0), changed, x)


def jitter(x: Tensor, params: ColourParams[Tensor], ends: list[int]) -> Tensor:
    """Brightness, contrast, saturation and hue in each image's own order; overwrites `x`.

    Hue, the most expensive, is changed in all images at once, between the operations before and after it: the
    images are in the order of `sorted_by_hue`, which also gives `ends`.
    """
    order = torch.stack(params.jitter_order).long()  # (4, N)
    factors = torch.stack(params.factors).gather(0, order)
    jittered = slice(ends[-1])
    for place in (0, 1, 2):
        rows = slice(ends[place], ends[-1])  # hue comes later
        blend_(x[rows], order[place, rows], factors[place, rows])
    x[jittered] = hue(x[jittered], params.hue[jittered])
    for place in (1, 2, 3):
        rows = slice(ends[place - 1])  # hue came earlier
        blend_(x[rows], order[place, rows], factors[place, rows])
    return x


def fused_jitter(x: Tensor, params: ColourParams[Tensor]) -> Tensor:
    """As `jitter`, with Triton kernels, for images in any order."""
    from cl.data import _fused_jitter  # imports Triton, which is missing on some systems

    return _fused_jitter.jitter(x, params)


def require_fused(device: torch.device) -> None:
    """Compile and run the fused kernels once; raises ValueError if they do not run on this machine."""
    params = ColourParams(*torch.zeros((DRAWS, 2), device=device))
    try:
        fused_jitter(torch.zeros((2, 3, 4, 4), device=device), params)
    except Exception as error:  # Triton raises many kinds
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"the fused kernels do not run here ({reason}): set CL_FUSED=0 to use PyTorch's operations"
        ) from error


def blend_(x: Tensor, operation: Tensor, factor: Tensor) -> Tensor:
    """Brightness (0), contrast (1), saturation (2): blend with black, the mean of gray, or the gray image.

    Overwrites `x` by the operation of each image, (N,), with its factor, (N,).
    """
    gray = _gray(x)
    other = torch.where(_per_image(operation == 1), gray.mean((1, 2, 3), keepdim=True), gray)
    return _blend_(x, other, factor, (1 - factor).where(operation != 0, 0))


def _gray(x: Tensor) -> Tensor:
    """(N, 1, H, W): luma of ITU-R 601, as in torchvision."""
    red, green, blue = x.split(1, 1)
    return (0.2989 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _blend_(x: Tensor, other: Tensor, factor: Tensor, rest: Tensor) -> Tensor:
    """Overwrites `x`."""
    return x.mul_(_per_image(factor)).add_(_per_image(rest) * other).clamp_(0, 1)


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
    angle = angle + 6 * _per_image(shift)
    k = (angle + torch.arange(5, 0, -2, device=x.device).view(1, 3, 1, 1)) % 6
    return value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


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
    levels = _per_image(bits.exp2())
    return torch.minimum((x * levels).floor_(), levels - 1) / levels


def sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image smoothed by Pillow's SMOOTH filter, except for its outermost pixels."""
    weight = x.new_full((x.shape[1], 1, 3, 3), 1 / 13)
    weight[:, :, 1, 1] = 5 / 13
    smooth = x.clone()
    smooth[:, :, 1:-1, 1:-1] = F.conv2d(x, weight, groups=x.shape[1])
    return _blend_(smooth, x, 1 - factor, factor)


def autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel to the range from 0 to 1; a channel of one value stays as it is."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    flat = low == high
    return ((x - low.where(~flat, 0)) / (high - low).where(~flat, 1)).clamp_(0, 1)


OPERATIONS: dict[str, Callable[[Tensor, ColourParams[Tensor]], Tensor]] = {
    "grayscale": lambda x, _: _gray(x),
    "solarize": lambda x, _: solarize(x, 0.5),
    "photometric": lambda x, params: autocontrast(
        solarize(sharpness(posterize(x, params.bits), params.sharpness), _per_image(params.threshold))
    ),
}
