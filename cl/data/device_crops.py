"""Training batches cropped on the training device, where all images stay, instead of by data workers.

Boxes and colours are those that data workers would draw. Both resize with antialiasing, first rows and then
columns, and round to uint8 after each. Weights here are float32, those on the CPU 16-bit integers, so crops
differ by at most 2 of 255 in a pixel and by less than 0.1 on average (by more only in smooth crops of a few
pixels, where many values are halves).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cl.data import ring
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.to_device import HostBatch, ToDevice
from cl.data.views import DRAWS, RandomNumbers, draw_colour_params, random_crop_box
from cl.runtime.machine import Machine, to_device
from cl.runtime.memory import available

SHARE = 0.25  # of the device's free memory, for the images
BLOCK = 1024  # images copied to the device at a time
MOST_WORKERS = 4  # each draws about 25,000 images per second, in two views
REMEDY = "choose optim.cropping=workers"


class DeviceTrainSet(TrainSet):
    """The batches of a `TrainSet`, to be cropped from `images`: all of the split, see `resident`."""

    def __init__(self, images: Tensor, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.images = images

    @property
    def arrays(self) -> list[ring.Array]:
        """The arrays of a batch: as a `TrainSet`'s, with the box of each view instead of its image."""
        boxes = [ring.Array((4,), np.int64) for _ in self.views]
        return [*boxes, ring.Array((len(self.views), DRAWS), np.float32)]

    def fill(self, step: int, rows: slice, arrays: list[np.ndarray]) -> None:
        *boxes, colour_params = arrays
        epoch, positions = self.samples(step)
        for row, position in enumerate(positions[rows].tolist()):
            for number, view in enumerate(self.views):
                rng = RandomNumbers(self.plan.seed, epoch, position, number)
                boxes[number][row] = random_crop_box(self.images.shape[2:], view.area, rng)
                colour_params[row, number] = draw_colour_params(view, rng)

    def batches(self, start: int, stop: int, workers: int) -> Iterator[HostBatch]:
        return super().batches(start, stop, min(workers, MOST_WORKERS))

    def inputs(self, here: Machine) -> "CropOnDevice":
        return CropOnDevice(self, here)


class CropOnDevice(ToDevice):
    """Crops a batch on the device, augments and normalises it; on a GPU, during the previous step."""

    def __init__(self, data: DeviceTrainSet, here: Machine) -> None:
        super().__init__(data.transform, data.views, here)
        self.images = data.images

    def crops(self, batch: HostBatch) -> Iterator[Tensor]:
        rows = to_device(batch.positions, self.device)
        for (view, count), boxes in zip(self.kinds, super().crops(batch), strict=True):
            images = self.images.index_select(0, rows.repeat(count))
            yield crop(images, boxes, view.size, view.interpolation)


def resident(reader: Reader, here: Machine) -> Tensor:
    """All images of a split on the device; (n, 3, H, W) uint8.

    Raises:
        ValueError: the images differ in size, or need more than `SHARE` of the device's free memory.
    """
    height, width, _ = shape = reader.pixels(0).shape
    needed, free = len(reader) * 3 * height * width, _free(here.device)
    if needed > SHARE * free:
        raise ValueError(
            f"the training images need {needed / 2**30:.3g} GiB on {here.device}, expected at most "
            f"{SHARE * free / 2**30:.3g}, a quarter of its free memory; {REMEDY}"
        )
    images = torch.empty((len(reader), 3, height, width), dtype=torch.uint8, device=here.device)

    def fill(start: int, rows: slice, arrays: list[np.ndarray]) -> None:
        if rows.start == 0:
            reader.prefetch(np.arange(start, min(start + 2 * BLOCK, len(reader))))
        for row, position in enumerate(range(start + rows.start, start + rows.stop)):
            pixels = reader.pixels(position)
            if pixels.shape != shape:
                raise ValueError(
                    f"{reader.keys[position].decode()} has {pixels.shape[1]} x {pixels.shape[0]} pixels, but "
                    f"optim.cropping=device needs images of one size, here {width} x {height}; {REMEDY}"
                )
            arrays[0][row] = pixels

    starts = range(0, len(reader), BLOCK)
    array = ring.Array(shape, np.uint8)
    filled = ring.filled(fill, starts, lambda start: min(BLOCK, len(reader) - start), [array], here.workers)
    for start, (pixels,) in zip(starts, filled, strict=True):
        block = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        images[start : start + len(block)] = to_device(block, here.device)
    return images


def _free(device: torch.device) -> int:
    """Free bytes on the device; for a CPU, this process's share of the free memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


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
