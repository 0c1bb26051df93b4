"""Training batches whose images are decoded and cropped on the training device instead of in data workers.

Boxes and colours are those that data workers would draw. Images of equal size stay on the device if they fit
(CIFAR, STL-10), and workers draw; otherwise this process draws, and sends the files of each batch to the
device, which decodes JPEGs.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import simplejpeg
import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg, encode_jpeg

from cl.data import resample, ring
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.to_device import HostBatch, ToDevice
from cl.data.views import DRAWS, RandomNumbers, draw_colour_params, random_crop_box
from cl.runtime import memory
from cl.runtime.machine import Machine, to_device

SHARE = 0.25  # of the device's free memory, for resident images
BLOCK = 1024  # images copied to the device at a time
COMPARED = 8  # images whose sizes are compared before all are read
MOST_WORKERS = 4  # each draws about 25,000 images per second, in two views


class Content(NamedTuple):
    """An image: `data` is uint8, the bytes of a JPEG (n,) or upright pixels (H, W, 3)."""

    data: np.ndarray
    height: int
    width: int
    orientation: int = 1


@dataclass(frozen=True)
class UncutBatch(HostBatch):
    """A batch whose `images` are not cut yet.

    boxes: (V, N, 4) int64: left, top, right, bottom in the upright image.
    contents: N images; empty if they are resident on the device.
    """

    boxes: Tensor
    contents: list[Content]


class DeviceTrainSet:
    """The batches of a `TrainSet`, cropped on the device.

    resident: all images of the split, (n, 3, H, W) uint8 on the device, or None.
    say: prints which JPEGs the device cannot decode.
    """

    def __init__(self, plain: TrainSet, resident: Tensor | None, say: Callable[[str], None] = print) -> None:
        self.plain, self.plan, self.resident, self.say = plain, plain.plan, resident, say
        self.undecodable: set[int] = set()  # positions of JPEGs that the device could not decode

    def batches(self, start: int, stop: int, workers: int) -> Iterator[UncutBatch]:
        """Batches of steps start to stop - 1; with workers, a batch's memory is reused two batches later."""
        views = len(self.plain.views)
        arrays = [ring.Array((views, 4), np.int64), ring.Array((views, DRAWS), np.float32)]
        steps = range(start, stop)
        if self.resident is None:
            for step in steps:
                self.plain.prefetch(step)
                positions = self.plain.samples(step)[1]
                contents = [self._content(position) for position in positions.tolist()]
                drawn = [array.allocate(len(positions), shared=False) for array in arrays]
                self._draw(step, slice(0, len(positions)), drawn, [image[1:3] for image in contents])
                yield self._batch(step, drawn, contents)
        else:
            fill = partial(self._draw, sizes=[self.resident.shape[2:]] * self.plan.share)
            filled = ring.filled(fill, steps, lambda _: self.plan.share, arrays, min(workers, MOST_WORKERS))
            for step, drawn in zip(steps, filled, strict=True):
                yield self._batch(step, drawn, [])

    def _content(self, position: int) -> Content:
        return (on_cpu if position in self.undecodable else content)(self.plain.reader, position)

    def leave_to_cpu(self, position: int) -> Content:
        """An image whose file the device could not decode; from now on, the CPU decodes it."""
        decoded = on_cpu(self.plain.reader, position)
        self.undecodable.add(position)
        count = len(self.undecodable)
        if count == 10 ** (len(str(count)) - 1):  # 1, 10, 100, ...
            key = self.plain.reader.keys[position].decode()
            self.say(f"the GPU cannot decode {count} images so far, the last {key}: the CPU decodes them")
        return decoded

    def _draw(self, step: int, rows: slice, arrays: list[np.ndarray], sizes: Sequence[Sequence[int]]) -> None:
        """Write the boxes and colours of some rows of a step's batch; `sizes`: of its images (H, W)."""
        boxes, colour_params = arrays
        epoch, positions = self.plain.samples(step)
        for row, (position, size) in enumerate(zip(positions[rows].tolist(), sizes[rows], strict=True)):
            for number, view in enumerate(self.plain.views):
                rng = RandomNumbers(self.plan.seed, epoch, position, number)
                boxes[row, number] = random_crop_box(size, view.area, rng)
                colour_params[row, number] = draw_colour_params(view, rng)

    def _batch(self, step: int, drawn: list[np.ndarray], contents: list[Content]) -> UncutBatch:
        boxes, colour_params = drawn
        rest = self.plain.batch(step, [], colour_params)
        return UncutBatch(**vars(rest), boxes=torch.from_numpy(boxes).transpose(0, 1), contents=contents)

    def __getitem__(self, step: int) -> UncutBatch:
        return next(self.batches(step, step + 1, 0))

    def inputs(self, here: Machine) -> "CropOnDevice":
        """A function that crops a batch on the device, augments and normalises it."""
        return CropOnDevice(self, here)


class CropOnDevice(ToDevice):
    """Crops a batch on the device, augments and normalises it; on a GPU, during the previous step.

    nvJPEG makes this process wait until a batch is decoded, but not for the training step.
    """

    def __init__(self, data: DeviceTrainSet, here: Machine) -> None:
        super().__init__(data.plain.transform, data.plain.views, here)
        self.data = data

    def crops(self, batch: HostBatch) -> Iterator[Tensor]:
        """The crops, M equal views in one tensor (M N, 3, S, S) uint8."""
        assert isinstance(batch, UncutBatch)
        resident = self.data.resident
        decoded = self._decoded(batch.contents, batch.positions.tolist()) if resident is None else []
        parts = batch.boxes.split([count for _, count in self.kinds])
        for (view, count), boxes in zip(self.kinds, parts, strict=True):
            boxes = boxes.flatten(0, 1)
            if resident is None:
                yield resample.crop_each(decoded * count, boxes.tolist(), view.size, view.interpolation)
            else:
                rows, boxes = (to_device(x, self.device) for x in (batch.positions.repeat(count), boxes))
                images = resident.index_select(0, rows)
                yield resample.crop_all(images, boxes, view.size, view.interpolation)

    def _decoded(self, contents: list[Content], positions: list[int]) -> list[Tensor]:
        """The images (3, H, W); the CPU decodes what the device cannot, and its errors name the image."""
        try:
            return decode(contents, self.device)
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except RuntimeError:
            if len(contents) == 1:
                return decode([self.data.leave_to_cpu(positions[0])], self.device)
            one_by_one = zip(contents, positions, strict=True)
            return [self._decoded([image], [position])[0] for image, position in one_by_one]


def content(reader: Reader, position: int) -> Content:
    """An image as sent to the device: the file of a colour JPEG, or pixels decoded here."""
    stored = reader.read(position)
    if not reader.index["height"][position] and stored[:2] == b"\xff\xd8":
        with suppress(ValueError):  # damaged: `on_cpu` names the image
            height, width, colours, _ = simplejpeg.decode_jpeg_header(stored)
            if colours == "YCbCr":
                orientation = int(reader.index["orientation"][position])
                size = (width, height) if orientation >= 5 else (height, width)
                return Content(np.frombuffer(stored, np.uint8).copy(), *size, orientation)
    return on_cpu(reader, position)


def on_cpu(reader: Reader, position: int) -> Content:
    """An image decoded by the CPU, as in data workers.

    Raises:
        ValueError: names an image that cannot be decoded.
    """
    pixels = reader.pixels(position)
    return Content(np.require(pixels, requirements="W"), *pixels.shape[:2])


def decode(contents: list[Content], device: torch.device) -> list[Tensor]:
    """The upright images (3, H, W) uint8 on the device, which decodes all JPEGs in one call."""
    if device.type == "cuda":
        # torchvision decodes in another stream, into memory that this stream may still be reading.
        torch.cuda.current_stream(device).synchronize()
    files = [torch.from_numpy(image.data) for image in contents if image.data.ndim == 1]
    decoded = iter(decode_jpeg(files, ImageReadMode.RGB, device=device) if files else [])
    return [
        turn(next(decoded), image.orientation)
        if image.data.ndim == 1
        else to_device(torch.from_numpy(image.data), device).permute(2, 0, 1)
        for image in contents
    ]


def turn(image: Tensor, orientation: int) -> Tensor:
    """As `cl.images.decoding.turn`, for an image (3, H, W)."""
    x = image.transpose(1, 2) if orientation in (5, 6, 7, 8) else image
    flipped = [axis for axis, which in ((1, (3, 4, 7, 8)), (2, (2, 3, 6, 7))) if orientation in which]
    return x.flip(flipped) if flipped else x


def on_device(data: TrainSet, here: Machine, say: Callable[[str], None]) -> DeviceTrainSet:
    """The batches of `data`, cropped on the device; `say` prints where images are decoded.

    Raises:
        ValueError: the device must decode JPEGs but cannot.
    """
    images = resident(data.reader, here)
    if images is not None:
        say(f"the images stay on {here.device}, which crops them")
        return DeviceTrainSet(data, images, say)
    try:
        decode_jpeg(encode_jpeg(torch.zeros((3, 16, 16), dtype=torch.uint8)), device=here.device)
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{here.device} cannot decode JPEGs ({reason}): choose cropping=workers") from error
    say(f"{here.device} decodes colour JPEGs, this process other images, and {here.device} crops them all")
    return DeviceTrainSet(data, None, say)


def resident(reader: Reader, here: Machine) -> Tensor | None:
    """All images (n, 3, H, W) uint8 on the device; None if their sizes differ or memory is short."""
    shape = reader.pixels(0).shape
    height, width, _ = shape
    if len(reader) * 3 * height * width > SHARE * _free(here.device):
        return None
    if any(reader.pixels(position).shape != shape for position in range(min(len(reader), COMPARED))):
        return None
    images = torch.empty((len(reader), 3, height, width), dtype=torch.uint8, device=here.device)

    def rows(start: int) -> int:
        return min(BLOCK, len(reader) - start)

    def fill(start: int, rows: slice, arrays: list[np.ndarray]) -> None:
        if rows.start == 0:
            reader.prefetch(np.arange(start, min(start + 2 * BLOCK, len(reader))))
        pixels, fits = arrays
        for row, position in enumerate(range(start + rows.start, start + rows.stop)):
            image = reader.pixels(position)
            fits[row] = image.shape == shape
            if fits[row]:
                pixels[row] = image

    starts, arrays = range(0, len(reader), BLOCK), [ring.Array(shape, np.uint8), ring.Array((), np.bool_)]
    filled = ring.filled(fill, starts, rows, arrays, here.workers)
    for start, (pixels, fits) in zip(starts, filled, strict=True):
        if not fits.all():
            return None
        block = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        images[start : start + len(block)] = to_device(block, here.device)
    return images


def _free(device: torch.device) -> int:
    """Free bytes on the device; for a CPU, this process's share of the free memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return memory.available() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
