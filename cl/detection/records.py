"""An image with its objects, whatever layout it comes from; and what is wrong with the files it comes from."""

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Picture
from pycocotools import mask as rle

SHOWN = 5  # problems that a sentence names


@dataclass(frozen=True)
class Record:
    """One image with its objects.

    boxes (n, 4) are x0, y0, x1, y1 in pixels, x1 and y1 exclusive; labels (n,) count from 0; `ignored` (n,) marks
    objects that count neither for nor against a detector (difficult in VOC, crowd in COCO).
    """

    identity: int
    path: Path
    width: int
    height: int
    boxes: np.ndarray
    labels: np.ndarray
    ignored: np.ndarray
    segmentations: list | None = None

    def without_ignored(self) -> "Record":
        """The same image with the objects that count."""
        keep = ~self.ignored
        kept = (
            None
            if self.segmentations is None
            else [s for s, k in zip(self.segmentations, keep, strict=True) if k]
        )
        arrays = {name: getattr(self, name)[keep] for name in ("boxes", "labels", "ignored")}
        return replace(self, **arrays, segmentations=kept)

    def picture(self) -> Picture.Image:
        """The image in RGB.

        Raises:
            ValueError: it cannot be read.
        """
        try:
            with Picture.open(self.path) as file:
                return file.convert("RGB")
        except OSError as error:
            raise ValueError(
                f"{self.path} cannot be read ({error}): replace it, or take it out of the lists"
            ) from error

    def masks(self) -> np.ndarray:
        """(n, H, W) uint8, 1 inside the object."""
        assert self.segmentations is not None
        encoded = [self._encode(segmentation) for segmentation in self.segmentations]
        if not encoded:
            return np.zeros((0, self.height, self.width), np.uint8)
        return np.stack([rle.decode(code) for code in encoded])

    def _encode(self, segmentation: Any) -> Any:
        if isinstance(segmentation, list):  # polygons
            return rle.merge(rle.frPyObjects(segmentation, self.height, self.width))
        if isinstance(segmentation["counts"], list):  # uncompressed
            return rle.frPyObjects(segmentation, self.height, self.width)
        return {"size": segmentation["size"], "counts": segmentation["counts"].encode()}


@dataclass(frozen=True)
class Findings:
    """What was found in the files: `wrong` must be mended, `noted` is left out, cut off, or merely worth knowing."""

    wrong: list[str] = field(default_factory=list)
    noted: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def stop(self) -> None:
        """Raise ValueError if something is wrong, naming each file, or the first few."""
        if self.wrong:
            more = f"; and {len(self.wrong) - SHOWN} more" if len(self.wrong) > SHOWN else ""
            raise ValueError("; ".join(self.wrong[:SHOWN]) + more)

    def lines(self) -> list[str]:
        """A line for each kind of what was noted, with the first few places."""
        return [
            f"{len(places)} {kind}: {', '.join(places[:SHOWN])}{', ...' if len(places) > SHOWN else ''}"
            for kind, places in self.noted.items()
        ]

    def write(self, path: Path) -> None:
        """All of what was noted, a row each."""
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["what", "where"])
            writer.writerows([kind, place] for kind, places in self.noted.items() for place in places)


def measured(
    image: Path, stated: Sequence[int | str] | None, where: Path, findings: Findings
) -> tuple[int, int]:
    """Width and height of an image file, or zeros, if it cannot be read; what is wrong goes to `findings`.

    Args:
        stated: width and height as the annotation in the file `where` says them.
    """
    try:
        with Picture.open(image) as picture:
            size = picture.size
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        findings.wrong.append(f"{image}: missing" if missing else f"{image}: cannot be read ({error})")
        return 0, 0
    if stated and [str(length) for length in stated] != [str(length) for length in size]:
        findings.wrong.append(
            f"{where}: says {stated[0]}x{stated[1]} pixels, {image.name} has {size[0]}x{size[1]}"
        )
    return size


def arrays(boxes: list, labels: list, ignored: list) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes (n, 4), labels (n,) and whether they are ignored (n,), as a record has them."""
    return np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int64), np.array(ignored, bool)


def inside(record: Record, name: str, findings: Findings) -> Record:
    """The record with boxes cut off at the image's edges, and those without area left out."""
    low, high = record.boxes[:, :2], record.boxes[:, 2:]
    size = np.array([record.width, record.height], np.float32)
    beyond = ((low < -0.5) | (high > size + 0.5)).any(1)
    low, high = low.clip(0, size), high.clip(0, size)
    empty = np.asarray((high <= low).any(1))
    for kind, which in (
        ("boxes that reach beyond their image, cut off", beyond),
        ("boxes without area, left out", empty),
    ):
        for i in np.flatnonzero(which):
            findings.noted[kind].append(f"{name} {record.boxes[i].tolist()}")
    clipped = replace(record, boxes=np.concatenate([low, high], 1), ignored=empty)
    return replace(clipped.without_ignored(), ignored=record.ignored[~empty])


def text(path: Path) -> str:
    """What a file holds, which must be there."""
    if not path.is_file():
        raise ValueError(
            f"no file {path}: put VOCdevkit or coco below the folder that CL_RAW names (default data/raw)"
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8 ({error})") from error
