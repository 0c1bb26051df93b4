"""Images and objects of data sets in VOC and COCO layout, as one type."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from PIL import Image as Picture
from pycocotools import mask as rle

VOC_CLASSES = [
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
]


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
        kept = None if self.segmentations is None else [s for s, k in zip(self.segmentations, keep, strict=True) if k]
        arrays = {name: getattr(self, name)[keep] for name in ("boxes", "labels", "ignored")}
        return replace(self, **arrays, segmentations=kept)

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


def read_voc(root: Path, splits: list[str], classes: list[str]) -> list[Record]:
    """The images of `splits` ("2007/trainval") below `root` = VOCdevkit; labels are positions in `classes`.

    Raises:
        ValueError: a file is missing, or an object has an unknown class or a box without area.
    """
    records: list[Record] = []
    for split in splits:
        year, name = split.split("/")
        folder = root / f"VOC{year}"
        for identity in _text(folder / "ImageSets" / "Main" / f"{name}.txt").split():
            image = folder / "JPEGImages" / f"{identity}.jpg"
            xml = folder / "Annotations" / f"{identity}.xml"
            records.append(_voc_record(len(records), image, ElementTree.fromstring(_text(xml)), classes, xml))
    return records


def voc_classes(root: Path, splits: list[str]) -> list[str]:
    """The twenty classes, or, for an own set, every name in the annotations of `splits`, sorted."""
    names = set()
    for split in splits:
        year, name = split.split("/")
        for identity in _text(root / f"VOC{year}" / "ImageSets" / "Main" / f"{name}.txt").split():
            xml = ElementTree.fromstring(_text(root / f"VOC{year}" / "Annotations" / f"{identity}.xml"))
            names |= {element.findtext("name", "") for element in xml.iter("object")}
    return VOC_CLASSES if names <= set(VOC_CLASSES) else sorted(names)


def _voc_record(identity: int, image: Path, xml: ElementTree.Element, classes: list[str], file: Path) -> Record:
    boxes, labels, difficult = [], [], []
    for element in xml.iter("object"):
        name = element.findtext("name", "")
        if name not in classes:
            raise ValueError(f"{file}: unknown class {name!r}, expected one of {', '.join(classes)}")
        x0, y0, x1, y1 = (float(element.findtext(f"bndbox/{tag}", "nan")) for tag in ("xmin", "ymin", "xmax", "ymax"))
        if not (x0 <= x1 and y0 <= y1):
            raise ValueError(f"{file}: the box of {name!r} ({x0}, {y0}, {x1}, {y1}) has no area")
        boxes.append((x0 - 1, y0 - 1, x1, y1))  # VOC counts pixels from 1, both ends included
        labels.append(classes.index(name))
        difficult.append(element.findtext("difficult", "0").strip() == "1")
    with Picture.open(_existing(image)) as picture:
        width, height = picture.size
    return Record(identity, image, width, height, *_arrays(boxes, labels, difficult))


def read_coco(root: Path, split: str) -> tuple[list[Record], list[int], list[str]]:
    """The images of `split` ("train2017") below `root`, and the category number and name of each label.

    Raises:
        ValueError: a file is missing.
    """
    content = json.loads(_text(root / "annotations" / f"instances_{split}.json"))
    categories = sorted(category["id"] for category in content["categories"])
    of_image: dict[int, list[dict]] = {image["id"]: [] for image in content["images"]}
    for annotation in content["annotations"]:
        of_image[annotation["image_id"]].append(annotation)
    records = []
    for image in content["images"]:
        objects = [a for a in of_image[image["id"]] if a["bbox"][2] > 0 and a["bbox"][3] > 0]
        boxes = [(x, y, x + w, y + h) for x, y, w, h in (a["bbox"] for a in objects)]
        arrays = _arrays(boxes, [categories.index(a["category_id"]) for a in objects], [a["iscrowd"] for a in objects])
        path = _existing(root / split / image["file_name"])
        segmentations = [a["segmentation"] for a in objects]
        records.append(Record(image["id"], path, image["width"], image["height"], *arrays, segmentations))
    names = {category["id"]: category["name"] for category in content["categories"]}
    return records, categories, [names[category] for category in categories]


def _arrays(boxes: list, labels: list, ignored: list) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int64), np.array(ignored, bool)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"no file {path}: put VOCdevkit or coco below the folder that CL_RAW names (default data/raw)")
    return path


def _text(path: Path) -> str:
    return _existing(path).read_text()
