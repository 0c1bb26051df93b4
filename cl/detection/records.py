"""Images with their annotated objects, and the problems found in the files that describe them."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Picture
from pycocotools.coco import COCO

from cl.images import decoding
from cl.runtime.tables import write_csv

SHOWN = 5  # how many problems a message names
FARTHEST = 1e9  # a coordinate beyond this is an error of writing, not a place outside the image


@dataclass(frozen=True)
class Record:
    """One image with its n objects.

    boxes (n, 4) are x0, y0, x1, y1 in pixels, x1 and y1 exclusive; labels (n,) count from 0; `ignored` (n,)
    marks objects that count neither for nor against a detector (difficult in VOC, crowd in COCO).
    `segmentations` are COCO's polygons or run-length encodings, one per object.
    """

    image_id: int
    path: Path
    width: int
    height: int
    boxes: np.ndarray
    labels: np.ndarray
    ignored: np.ndarray
    segmentations: list | None = None

    def select(self, keep: np.ndarray) -> "Record":
        """The same image with the objects that `keep` (n,) marks."""
        arrays = {name: getattr(self, name)[keep] for name in ("boxes", "labels", "ignored")}
        segmentations = self.segmentations
        if segmentations is not None:
            segmentations = [s for s, kept in zip(segmentations, keep, strict=True) if kept]
        return replace(self, **arrays, segmentations=segmentations)

    def picture(self) -> Picture.Image:
        """The image in RGB, upright by its EXIF orientation; raises ValueError if it cannot be read."""
        try:
            with self.path.open("rb") as file, decoding.opened(file) as picture:
                return Picture.fromarray(decoding.from_picture(picture, upright=True))
        except Exception as error:  # decoders raise errors of any type
            remedy = "replace it or remove it from the lists"
            raise ValueError(f"{self.path} cannot be read ({error}): {remedy}") from error

    def problem(self) -> str | None:
        """Why the image cannot be read; decodes all of it, JPEG at an eighth of its size."""
        try:
            with self.path.open("rb") as file, decoding.opened(file) as picture:
                picture.draft("RGB", (picture.width // 8, picture.height // 8))
                decoding.from_picture(picture, upright=False)
        except Exception as error:  # decoders raise errors of any type
            return f"{self.path}: cannot be read ({error})"
        return None

    def masks(self) -> np.ndarray:
        """(n, H, W) uint8, 1 inside the object."""
        assert self.segmentations is not None
        if not self.segmentations:
            return np.zeros((0, self.height, self.width), np.uint8)
        tools: Any = COCO()
        tools.imgs = {0: {"height": self.height, "width": self.width}}
        return np.stack([tools.annToMask({"image_id": 0, "segmentation": s}) for s in self.segmentations])


@dataclass(frozen=True)
class Findings:
    """Problems in the files: `errors` must be fixed; `notes`, places by kind, need not be."""

    errors: list[str] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def raise_errors(self) -> None:
        """Raise a ValueError that names the first few errors, if there are any."""
        if self.errors:
            more = f"; and {len(self.errors) - SHOWN} more" if len(self.errors) > SHOWN else ""
            raise ValueError("; ".join(self.errors[:SHOWN]) + more)

    def lines(self) -> list[str]:
        """One line per kind of note, with the first few places."""
        return [
            f"{kind}: {len(places)} ({', '.join(places[:SHOWN])}{', ...' if len(places) > SHOWN else ''})"
            for kind, places in self.notes.items()
        ]

    def write(self, path: Path) -> None:
        """Write all notes as CSV, one per row."""
        rows = ((kind, place) for kind, places in self.notes.items() for place in places)
        write_csv(path, ["what", "where"], rows)

    def image_size(
        self, image: Path, stated: Sequence[float | str] | None, annotations: Path
    ) -> tuple[int, int]:
        """Upright width and height, or zeros; a problem, or a size that is not `stated`, is an error."""
        try:
            with image.open("rb") as file, decoding.opened(file) as picture:
                (width, height), orientation = picture.size, decoding.exif_orientation(picture)
        except Exception as error:  # decoders raise errors of any type
            missing = "missing; write / between its folders" if "\\" in image.name else "missing"
            what = missing if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
            self.errors.append(f"{image}: {what}")
            return 0, 0
        if orientation > 1:
            self.notes["images turned upright by their EXIF orientation"].append(image.name)
        if turned := orientation >= 5:
            width, height = height, width
        if stated and [number_in(length) for length in stated] != [width, height]:
            upright = ", upright by its EXIF orientation" if turned else ""
            self.errors.append(
                f"{annotations}: states {stated[0]}x{stated[1]} pixels, but {image.name} has "
                f"{width}x{height}{upright}"
            )
        return width, height

    def clip_boxes(
        self, corners: list[tuple[float, float, float, float]], size: tuple[int, int], name: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boxes (n, 4) clipped to their image of this width and height; `name` is for the notes.

        Also which extended beyond the image, (n,), and which have no area, (n,).
        """
        boxes = np.array(corners, np.float32).reshape(-1, 4)
        low, high = boxes[:, :2], boxes[:, 2:]
        ends = np.array(size, np.float32)
        beyond = np.asarray(((low < -0.5) | (high > ends + 0.5)).any(1))
        low, high = low.clip(0, ends), high.clip(0, ends)
        empty = np.asarray((high <= low).any(1))
        for kind, affected in (
            ("boxes that extend beyond their image, clipped", beyond),
            ("boxes without area, dropped", empty),
        ):
            for i in np.flatnonzero(affected):
                self.notes[kind].append(f"{name} {boxes[i].tolist()}")
        return np.concatenate([low, high], 1), beyond, empty


@dataclass(frozen=True)
class DataSet:
    """The images to train and test on; for COCO also each label's category id.

    `annotations` are those of COCO's test images, in COCO's format, as its evaluators take them.
    """

    classes: list[str]
    train: list[Record]
    test: list[Record]
    findings: Findings
    annotations: dict[str, Any] | None = None
    categories: list[int] | None = None

    def digest(self) -> str:
        """A hash of everything except the pixels."""
        sha = hashlib.sha256()
        for r in (*self.train, *self.test):
            arrays = [array.tolist() for array in (r.boxes, r.labels, r.ignored)]
            sha.update(f"{r.path.name} {r.width}x{r.height} {arrays} {r.segmentations}".encode())
        return sha.hexdigest()


def number_in(text: float | str) -> float:
    """The number that a file states; NaN if it states none."""
    try:
        return float(text)
    except (OverflowError, TypeError, ValueError):
        return float("nan")


def read_text(path: Path) -> str:
    """The content of a file of the data set, in UTF-8 with or without a byte order mark."""
    if not path.is_file():
        folder = next(parent for parent in path.parents if parent.is_dir())
        present = ", ".join(sorted(each.name for each in folder.iterdir())[:SHOWN]) or "nothing"
        raise ValueError(
            f"{path} not found, only {present} in {folder}: put VOCdevkit or coco, as distributed, in the "
            "folder that CL_RAW names (default data/raw)"
        )
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not valid UTF-8 ({error})") from error
