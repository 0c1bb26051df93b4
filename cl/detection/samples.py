"""Training images as a detector sees them, prefetched by threads."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image as Picture
from torch import Tensor
from torchvision.transforms.functional import InterpolationMode, pil_to_tensor, resize

from cl.data.order import Plan
from cl.detection.config import Config
from cl.detection.records import Record
from cl.runtime.distributed import rank, ranks
from cl.runtime.machine import Machine

T = TypeVar("T")
R = TypeVar("R")
PREFETCHED = 3  # items per worker


@dataclass(frozen=True)
class Sample:
    """A resized, possibly mirrored image (3, H, W), uint8, with boxes (n, 4) in pixels and labels (n,)."""

    image: Tensor
    boxes: Tensor
    labels: Tensor
    record: Record
    mirrored: bool

    def masks(self) -> Tensor:
        """(n, H, W) uint8, 1 inside the object."""
        masks = torch.from_numpy(self.record.masks())
        masks = resize(masks, list(self.image.shape[1:]), InterpolationMode.NEAREST_EXACT)
        return masks.flip(2) if self.mirrored else masks

    def polygons(self) -> list[list[np.ndarray]]:
        """The polygons of each object: arrays x0, y0, x1, y1, ... in the pixels of the image."""
        assert self.record.segmentations is not None
        return [[self._to_image(np.array(p)) for p in polygons] for polygons in self.record.segmentations]

    def _to_image(self, polygon: np.ndarray) -> np.ndarray:
        height, width = self.image.shape[1:]
        points = polygon.reshape(-1, 2) * np.array([width / self.record.width, height / self.record.height])
        if self.mirrored:
            points[:, 0] = self.image.shape[2] - points[:, 0]
        return points.reshape(-1)


def sample(record: Record, side: int, longest: int, *, mirrored: bool) -> Sample:
    """The resized image, mirrored if asked for, with its objects."""
    picture = resized(record.picture(), side, longest)
    boxes = record.boxes * np.tile([picture.width / record.width, picture.height / record.height], 2)
    if mirrored:
        picture = picture.transpose(Picture.Transpose.FLIP_LEFT_RIGHT)
        boxes[:, [0, 2]] = picture.width - boxes[:, [2, 0]]
    labels = torch.from_numpy(record.labels)
    return Sample(pil_to_tensor(picture), torch.from_numpy(boxes).float(), labels, record, mirrored)


def resized(picture: Picture.Image, side: int, longest: int) -> Picture.Image:
    """The image at `resized_size`: bilinear, antialiased."""
    return picture.resize(resized_size(*picture.size, side, longest), Picture.Resampling.BILINEAR)


def resized_size(width: int, height: int, side: int, longest: int) -> tuple[int, int]:
    """Width and height with a short side of `side`, or less if the long side would exceed `longest`."""
    size = np.array([width, height]) * (side / min(width, height))
    if max(size) > longest:
        size *= longest / max(size)
    width, height = (size + 0.5).astype(int).tolist()
    return width, height


class TrainImages:
    """The batches that train a detector: `cl.training.loop.Data`; `item` turns a sample into what it takes.

    The images of a batch, their sizes and which are mirrored depend only on (seed, step). Within a batch,
    each rank gets images of similar shape, so that little padding is needed.
    """

    def __init__(
        self, records: list[Record], config: Config, seed: int, item: Callable[[Sample], Any]
    ) -> None:
        self.records, self.config, self.item = records, config, item
        self.plan = Plan(len(records), config.batch_size, seed, rank(), ranks())
        self._aspect_ratios = np.array([record.height / record.width for record in records])

    def _share(self, step: int) -> Iterator[tuple[int, int, bool]]:
        """This rank's images of a step: for each its position, short side and whether it is mirrored."""
        epoch, positions = replace(self.plan, rank=0, ranks=1).step(step)
        positions = positions[np.argsort(self._aspect_ratios[positions], kind="stable")]
        first = self.plan.rank * self.plan.share
        for position in positions[first : first + self.plan.share].tolist():
            philox = np.random.Philox(key=self.plan.seed, counter=[0, epoch, position, 0])
            rng = np.random.Generator(philox)
            yield position, int(rng.choice(self.config.train_sides)), bool(rng.integers(2))

    def _load(self, draw: tuple[int, int, bool]) -> Any:
        position, side, mirrored = draw
        return self.item(sample(self.records[position], side, self.config.max_side, mirrored=mirrored))

    def batches(self, start: int, stop: int, workers: int) -> Iterator[list[Any]]:
        """The items of steps start to stop - 1."""
        draws = (draw for step in range(start, stop) for draw in self._share(step))
        items = prefetch(self._load, draws, workers)
        for _ in range(start, stop):
            yield list(islice(items, self.plan.share))

    def inputs(self, here: Machine) -> Callable[[list[Any]], list[Any]]:
        """The identity: the detector itself moves a batch to the device."""
        return lambda batch: batch


def prefetch(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """`map` in threads, a few items ahead. PIL and NumPy release the GIL; processes would copy the images."""
    if workers == 0:
        yield from map(function, items)
        return
    items = iter(items)
    with ThreadPoolExecutor(workers) as pool:
        first = islice(items, PREFETCHED * workers)
        waiting: deque[Future[R]] = deque(pool.submit(function, item) for item in first)
        try:
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(function, item) for item in islice(items, 1))
                yield result
        finally:
            pool.shutdown(cancel_futures=True)
