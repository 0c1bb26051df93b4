"""Training batches cropped on the training device, where all images stay, instead of by data workers.

Boxes and colours are those that data workers would draw.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cl.data import resample, ring
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.to_device import HostBatch, ToDevice
from cl.data.views import DRAWS, RandomNumbers, draw_colour_params, random_crop_box
from cl.runtime import memory
from cl.runtime.machine import Machine, to_device

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
            yield resample.crop(images, boxes, view.size, view.interpolation)


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
    return memory.available() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
