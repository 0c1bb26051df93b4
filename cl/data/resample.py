"""Crops images on the training device, as `cl.data.views.resize` does on the CPU.

Both resize with antialiasing, first rows and then columns, and round to uint8 after each. Weights here are
float32, those on the CPU 16-bit integers, so crops differ by at most 2 of 255 in a pixel and by less than 0.1
on average (by more only in smooth crops of a few pixels, where many values are halves).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def crop(images: Tensor, boxes: Tensor, size: int, interpolation: str) -> Tensor:
    """Crop images of equal size, each to its own box, by two matrix products.

    (N, 3, H, W) uint8 to (N, 3, size, size) uint8, channels-last; the boxes (N, 4), on the same device, are
    left, top, right, bottom.
    """
    n, channels, height, width = images.shape
    starts, stops = boxes.double().view(n, 2, 2).permute(1, 2, 0).flatten(1)  # (2 N,): rows after columns
    both = weights(starts, stops, size, max(height, width), interpolation)
    across, down = both[:n, :, :width], both[n:, :, :height]  # (N, S, W) and (N, S, H)
    with _full_precision():
        x = images.reshape(n, channels * height, width).float() @ across.mT
        x = _whole(x).view(n, channels, height, size)
        x = _whole(down[:, None] @ x)
    return x.to(torch.uint8, memory_format=torch.channels_last)


def weights(start: Tensor, stop: Tensor, size: int, length: int, interpolation: str) -> Tensor:
    """The weight of each of `length` pixels in the pixels of [start, stop) resized to `size`.

    start, stop: (N,). Returns (N, size, length); each row sums to 1 and is 0 outside the range.
    """
    scale = ((stop - start) / size)[:, None, None]
    pixel = torch.arange(length, device=start.device) - start[:, None, None]  # (N, 1, length)
    centre = scale * (torch.arange(size, device=start.device)[:, None] + 0.5)  # (N, size, 1)
    weight = KERNELS[interpolation]((pixel + 0.5 - centre).abs() / scale.clamp(min=1))
    weight = weight * ((pixel >= 0) & (pixel < (stop - start)[:, None, None]))
    return (weight / weight.sum(2, keepdim=True)).float()


def _cubic(distance: Tensor) -> Tensor:
    """Keys' kernel with a = -1/2, as in Pillow."""
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0))


KERNELS = {"bilinear": lambda distance: (1 - distance).clamp(min=0), "bicubic": _cubic}


def _whole(x: Tensor) -> Tensor:
    """Round to the levels of uint8, halves up, as data workers do."""
    return x.add_(0.5).floor_().clamp_(0, 255)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Disable TF32 in the block: its 11-bit weights would change every twentieth pixel."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
