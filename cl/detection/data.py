"""Images and objects of data sets in VOC and COCO layout, as one type, checked before anything is trained."""

import csv
import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from PIL import Image as Picture
from pycocotools import mask as rle

from cl.detection.config import Config

SHOWN = 5  # problems that a sentence names
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

    def picture(self) -> Picture.Image:
        """The image in RGB.

        Raises:
            ValueError: it cannot be read, or has another size than its annotation says.
        """
        try:
            with Picture.open(self.path) as file:
                picture = file.convert("RGB")
        except OSError as error:
            raise ValueError(f"{self.path} cannot be read ({error}): replace it, or take it out of the lists") from error
        if picture.size != (self.width, self.height):
            raise ValueError(
                f"{self.path} has {picture.width}x{picture.height} pixels, its annotation says {self.width}x{self.height}"
            )
        return picture

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


@dataclass(frozen=True)
class DataSet:
    """The images to train and test on; `annotations` and `categories` are COCO's."""

    classes: list[str]
    train: list[Record]
    test: list[Record]
    findings: Findings
    annotations: Path | None = None
    categories: list[int] | None = None

    def digest(self) -> str:
        """A hash of what is trained on: names, boxes and labels."""
        sha = hashlib.sha256()
        for record in self.train:
            sha.update(f"{record.path.name}{record.boxes.tolist()}{record.labels.tolist()}".encode())
        return sha.hexdigest()


def read(config: Config, root: Path) -> DataSet:
    """The data of a transfer below `root`, which holds `VOCdevkit` or `coco`; of images without objects none to train on.

    Raises:
        ValueError: files are missing or contradict each other, each is named.
    """
    findings = Findings()
    dataset = (_voc if config.kind == "voc" else _coco)(config, root, findings)
    findings.stop()
    if config.kind == "coco":  # crowds are left out; VOC's difficult objects are trained on, as detectron2 does
        dataset = replace(dataset, train=[record.without_ignored() for record in dataset.train])
    for record in dataset.train:
        if not len(record.boxes):
            findings.noted["training images without objects, left out"].append(record.path.name)
    train = [record for record in dataset.train if len(record.boxes)]
    return replace(dataset, train=_some(train, config.subset), test=_some(dataset.test, config.subset))


def _some(records: list[Record], number: int | None) -> list[Record]:
    """So many of them, evenly spread."""
    if number is None or number >= len(records):
        return records
    return [records[i] for i in np.linspace(0, len(records) - 1, number).round().astype(int)]


def _voc(config: Config, root: Path, findings: Findings) -> DataSet:
    folder = root / "VOCdevkit"
    classes = voc_classes(folder, [*config.train, config.test], findings)
    train, test = (read_voc(folder, splits, classes, findings) for splits in (config.train, [config.test]))
    return DataSet(classes, train, test, findings)


def _coco(config: Config, root: Path, findings: Findings) -> DataSet:
    folder = root / "coco"
    test, categories, classes = read_coco(folder, config.test, findings, masks=config.masks)
    train = []
    for split in config.train:
        records, others, _ = read_coco(folder, split, findings, masks=config.masks)
        if others != categories:
            findings.wrong.append(
                f"instances_{split}.json and instances_{config.test}.json in {folder} have different categories"
            )
        train += records
    for label in sorted(set(range(len(classes))) - {int(label) for record in train for label in record.labels}):
        findings.noted["categories without an object to train on"].append(classes[label])
    return DataSet(classes, train, test, findings, folder / "annotations" / f"instances_{config.test}.json", categories)


def _names(root: Path, split: str) -> tuple[Path, list[str]]:
    """The folder of a split ("2007/trainval") and the names of its images."""
    year, name = split.split("/")
    folder = root / f"VOC{year}"
    return folder, _text(folder / "ImageSets" / "Main" / f"{name}.txt").split()


def voc_classes(root: Path, splits: list[str], findings: Findings) -> list[str]:
    """The twenty classes, or, for an own set, every name in the annotations of `splits`, sorted."""
    names = set()
    for split in splits:
        folder, images = _names(root, split)
        for image in images:
            if (xml := _parsed(folder / "Annotations" / f"{image}.xml", findings)) is not None:
                names |= {element.findtext("name", "") for element in xml.iter("object")}
    findings.stop()
    return VOC_CLASSES if names <= set(VOC_CLASSES) else sorted(names)


def _parsed(path: Path, findings: Findings) -> ElementTree.Element | None:
    try:
        return ElementTree.fromstring(path.read_bytes())
    except (FileNotFoundError, ElementTree.ParseError) as error:
        findings.wrong.append(f"{path}: {'missing' if isinstance(error, FileNotFoundError) else f'no XML ({error})'}")
        return None


def read_voc(root: Path, splits: list[str], classes: list[str], findings: Findings) -> list[Record]:
    """The images of `splits` ("2007/trainval") below `root` = VOCdevkit; labels are positions in `classes`.

    Raises:
        ValueError: a list of images is missing. All else goes to `findings`.
    """
    records: list[Record] = []
    for split in splits:
        folder, names = _names(root, split)
        for name in names:
            image, file = folder / "JPEGImages" / f"{name}.jpg", folder / "Annotations" / f"{name}.xml"
            xml = _parsed(file, findings)
            if not image.is_file():
                findings.wrong.append(f"{image}: missing")
            elif xml is not None:
                records.append(_voc_record(len(records), image, xml, classes, file, findings))
    return records


def _voc_record(
    identity: int, image: Path, xml: ElementTree.Element, classes: list[str], file: Path, findings: Findings
) -> Record:
    try:
        with Picture.open(image) as picture:
            width, height = picture.size
    except OSError as error:
        findings.wrong.append(f"{image}: cannot be read ({error})")
        width = height = 0
    stated = tuple(xml.findtext(f"size/{tag}", "") for tag in ("width", "height"))
    if all(stated) and width and stated != (str(width), str(height)):
        findings.wrong.append(f"{file}: says {'x'.join(stated)} pixels, {image.name} has {width}x{height}")
    boxes, labels, difficult = [], [], []
    for element in xml.iter("object"):
        name = element.findtext("name", "")
        corners = [element.findtext(f"bndbox/{tag}", "") for tag in ("xmin", "ymin", "xmax", "ymax")]
        if name not in classes:
            findings.wrong.append(f"{file}: unknown class {name!r}, expected one of {', '.join(classes)}")
        elif not all(_is_number(corner) for corner in corners):
            findings.wrong.append(f"{file}: the box of {name!r} is {corners}, expected four numbers")
        else:
            x0, y0, x1, y1 = map(float, corners)
            boxes.append((x0 - 1, y0 - 1, x1, y1))  # VOC counts pixels from 1, both ends included
            labels.append(classes.index(name))
            difficult.append(element.findtext("difficult", "0").strip() == "1")
    record = Record(identity, image, width, height, *_arrays(boxes, labels, difficult))
    return _inside(record, file.name, findings)


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def read_coco(root: Path, split: str, findings: Findings, *, masks: bool = False) -> tuple[list[Record], list[int], list[str]]:
    """The images of `split` ("train2017") below `root`, and the category number and name of each label.

    Args:
        masks: an object without one is left out.

    Raises:
        ValueError: the list of annotations is missing, or none. All else goes to `findings`.
    """
    path = root / "annotations" / f"instances_{split}.json"
    try:
        content = json.loads(_text(path))
        images, annotations = content["images"], content["annotations"]
        names = {category["id"]: category["name"] for category in content["categories"]}
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no list of COCO's instances ({type(error).__name__}: {error})") from error
    categories = sorted(names)
    of_image: dict[int, list[dict]] = {image["id"]: [] for image in images}
    for annotation in annotations:
        where = f"{path}: annotation {annotation['id']}"
        if annotation["image_id"] not in of_image:
            findings.wrong.append(f"{where} is of image {annotation['image_id']}, which is not listed")
        elif annotation["category_id"] not in names:
            findings.wrong.append(f"{where} has category {annotation['category_id']}, which is not listed")
        else:
            of_image[annotation["image_id"]].append(annotation)
    records = []
    for image in images:
        file = root / split / image["file_name"]
        if not file.is_file():
            findings.wrong.append(f"{file}: missing")
        records.append(_coco_record(image, file, of_image[image["id"]], categories, findings, masks=masks))
    return records, categories, [names[category] for category in categories]


def _coco_record(
    image: dict, file: Path, annotations: list[dict], categories: list[int], findings: Findings, *, masks: bool
) -> Record:
    if masks:
        bad = [a for a in annotations if not _is_mask(a.get("segmentation"))]
        for annotation in bad:
            findings.noted["objects without a mask, left out"].append(f"{file.name} ({annotation['id']})")
        annotations = [a for a in annotations if a not in bad]
    boxes = [(x, y, x + w, y + h) for x, y, w, h in (a["bbox"] for a in annotations)]
    labels = [categories.index(a["category_id"]) for a in annotations]
    crowds = [bool(a.get("iscrowd", 0)) for a in annotations]
    segmentations = [a.get("segmentation") for a in annotations]
    record = Record(image["id"], file, image["width"], image["height"], *_arrays(boxes, labels, crowds), segmentations)
    if any(crowds):
        findings.noted["images with crowds, which are not trained on"].append(file.name)
    return _inside(record, file.name, findings)


def _is_mask(segmentation: Any) -> bool:
    """Runs, or polygons of three corners or more."""
    if isinstance(segmentation, list):
        return bool(segmentation) and all(len(polygon) >= 6 and len(polygon) % 2 == 0 for polygon in segmentation)
    return isinstance(segmentation, dict)


def _inside(record: Record, name: str, findings: Findings) -> Record:
    """Boxes cut off at the image's edges, and those without area left out."""
    low, high = record.boxes[:, :2], record.boxes[:, 2:]
    size = np.array([record.width, record.height], np.float32)
    beyond = ((low < -0.5) | (high > size + 0.5)).any(1)
    low, high = low.clip(0, size), high.clip(0, size)
    empty = np.asarray((high <= low).any(1))
    for kind, which in (("boxes that reach beyond their image, cut off", beyond), ("boxes without area, left out", empty)):
        findings.noted[kind] += [f"{name} {record.boxes[i].tolist()}" for i in np.flatnonzero(which)]
        if not findings.noted[kind]:
            del findings.noted[kind]
    clipped = replace(record, boxes=np.concatenate([low, high], 1), ignored=empty)
    return replace(clipped.without_ignored(), ignored=record.ignored[~empty])


def _arrays(boxes: list, labels: list, ignored: list) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int64), np.array(ignored, bool)


def _text(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"no file {path}: put VOCdevkit or coco below the folder that CL_RAW names (default data/raw)")
    return path.read_text()
