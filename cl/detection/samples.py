"""Training images as a detector sees them, made by threads ahead of their use."""

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
from cl.data.views import generator
from cl.detection.config import Config
from cl.detection.records import Record
from cl.runtime.distributed import rank, ranks

T = TypeVar("T")
R = TypeVar("R")
AHEAD = 3  # items a worker has before it


@dataclass(frozen=True)
class Sample:
    """A resized and perhaps mirrored image: image (3, H, W) uint8, boxes (n, 4) in its pixels, labels (n,) from 0."""

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
        """The outlines of each object: arrays x0, y0, x1, y1, ..."""
        height, width = self.image.shape[1:]
        scale = np.array([width / self.record.width, height / self.record.height])
        assert self.record.segmentations is not None
        return [
            [self._placed(np.array(outline), scale) for outline in shape]
            for shape in self.record.segmentations
        ]

    def _placed(self, outline: np.ndarray, scale: np.ndarray) -> np.ndarray:
        points = outline.reshape(-1, 2) * scale
        if self.mirrored:
            points[:, 0] = self.image.shape[2] - points[:, 0]
        return points.reshape(-1)


def sample(record: Record, side: int, longest: int, *, mirrored: bool) -> Sample:
    """The image with this short side, as `resized` says, and its objects."""
    picture = resized(record.picture(), side, longest)
    boxes = record.boxes * np.tile([picture.width / record.width, picture.height / record.height], 2)
    if mirrored:
        picture = picture.transpose(Picture.Transpose.FLIP_LEFT_RIGHT)
        boxes[:, [0, 2]] = picture.width - boxes[:, [2, 0]]
    labels = torch.from_numpy(record.labels)
    return Sample(pil_to_tensor(picture), torch.from_numpy(boxes).float(), labels, record, mirrored)


def resized(picture: Picture.Image, side: int, longest: int) -> Picture.Image:
    """Bilinear, antialiased, as `resized_size` says."""
    return picture.resize(resized_size(*picture.size, side, longest), Picture.Resampling.BILINEAR)


def resized_size(width: int, height: int, side: int, longest: int) -> tuple[int, int]:
    """The short side becomes `side`, or less so that the long side is at most `longest`."""
    size = np.array([width, height]) * (side / min(width, height))
    if max(size) > longest:
        size *= longest / max(size)
    width, height = (size + 0.5).astype(int).tolist()
    return width, height


class TrainImages:
    """The batches of a detector's training: `cl.train.Data`.

    Which images make a batch, their sizes and which are mirrored depends on (seed, step) alone. Of a batch, each rank has
    images of similar shape, so that little is padded.
    """

    def __init__(
        self, records: list[Record], config: Config, seed: int, item: Callable[[Sample], Any]
    ) -> None:
        self.records, self.config, self.item = records, config, item
        self.plan = Plan(len(records), config.batch_size, seed, rank(), ranks())
        self._shapes = np.array([record.height / record.width for record in records])

    def _share(self, step: int) -> Iterator[tuple[int, int, bool]]:
        """This rank's images of a step: the position of each, its short side and whether it is mirrored."""
        epoch, positions = replace(self.plan, rank=0, ranks=1).step(step)
        positions = positions[np.argsort(self._shapes[positions], kind="stable")]
        first = self.plan.rank * self.plan.share
        for position in positions[first : first + self.plan.share].tolist():
            rng = generator(self.plan.seed, epoch, position, 0)
            yield position, int(rng.choice(self.config.train_sides)), bool(rng.integers(2))

    def _made(self, place: tuple[int, int, bool]) -> Any:
        position, side, mirrored = place
        return self.item(sample(self.records[position], side, self.config.max_side, mirrored=mirrored))

    def batches(self, start: int, stop: int, workers: int) -> Iterator[list[Any]]:
        """The items of steps start to stop - 1."""
        places = (place for step in range(start, stop) for place in self._share(step))
        items = ahead(self._made, places, workers)
        for _ in range(start, stop):
            yield list(islice(items, self.plan.share))

    def inputs(self, device: torch.device) -> Callable[[list[Any]], list[Any]]:
        """A batch goes to the detector as it is, which puts it on the device."""
        return lambda batch: batch


def ahead(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """`map` in threads, some items ahead; PIL and NumPy let others work meanwhile, and nothing is copied between processes."""
    if workers == 0:
        yield from map(function, items)
        return
    items = iter(items)
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[R]] = deque(
            pool.submit(function, item) for item in islice(items, AHEAD * workers)
        )
        try:
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(function, item) for item in islice(items, 1))
                yield result
        finally:
            pool.shutdown(cancel_futures=True)
