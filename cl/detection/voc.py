"""Data in PASCAL VOC's layout: one XML file per image."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from cl.detection.records import FARTHEST, DataSet, Findings, Record, number_in, read_text

CLASSES = [
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat",
    "chair", "cow", "diningtable", "dog", "horse", "motorbike", "person",
    "pottedplant", "sheep", "sofa", "train", "tvmonitor",
]  # fmt: skip


class _Image(NamedTuple):
    """An image, its annotation file, and the content of that file."""

    path: Path
    file: Path
    xml: ElementTree.Element


def read(root: Path, train: list[str], test: str, findings: Findings) -> DataSet:
    """The images of `train` and `test` ("2007/trainval") below `root`, the devkit.

    The classes are VOC's twenty or, if the annotations name any other class, all names that they contain,
    sorted. Labels are positions in this list. Problems go to `findings`.
    """
    parsed = {split: _parse(root, split, findings) for split in (*train, test)}
    classes = _classes(chain(*parsed.values()), findings)

    def records(splits: list[str]) -> list[Record]:
        images = chain(*(parsed[split] for split in splits))
        return [_record(number, image, classes, findings) for number, image in enumerate(images)]

    return DataSet(classes, records(train), records([test]), findings)


def _parse(root: Path, split: str, findings: Findings) -> list[_Image]:
    year, name = split.split("/")
    folder = root / f"VOC{year}"
    listed, images = folder / "ImageSets" / "Main" / f"{name}.txt", []
    for image, times in Counter(filter(None, map(str.strip, read_text(listed).splitlines()))).items():
        file = folder / "Annotations" / f"{image}.xml"
        if times > 1:
            findings.errors.append(f"{listed}: names {image!r} {times} times, expected once")
        try:
            xml = ElementTree.fromstring(file.read_bytes())
            pictures = [folder / "JPEGImages" / f"{image}.{suffix}" for suffix in ("jpg", "png")]
            images.append(_Image(next(filter(Path.is_file, pictures), pictures[0]), file, xml))
        except (ElementTree.ParseError, LookupError, ValueError) as error:
            findings.errors.append(f"{file}: not valid XML ({error}); save it as UTF-8")
        except OSError as error:
            findings.errors.append(f"{file}: cannot be read ({error.strerror})")
    return images


def _classes(images: Iterable[_Image], findings: Findings) -> list[str]:
    names = set()
    for image in images:
        present = {_name(element) for element in image.xml.iter("object")}
        for name in present:
            if name not in CLASSES and name.lower() in CLASSES:
                findings.errors.append(f"{image.file}: class {name!r}, expected {name.lower()!r}")
        if "" in present:
            findings.errors.append(f"{image.file}: an object without a name")
        names |= present
    if names <= set(CLASSES):
        return CLASSES
    findings.notes["classes in the annotations, used instead of VOC's twenty"] += sorted(names)
    return sorted(names)


def _record(number: int, image: _Image, classes: list[str], findings: Findings) -> Record:
    stated = [image.xml.findtext(f"size/{tag}", "") for tag in ("width", "height")]
    size = findings.image_size(image.path, stated if all(stated) else None, image.file)
    boxes, labels, difficult = [], [], []
    for element in image.xml.iter("object"):
        name = _name(element)
        corners = [element.findtext(f"bndbox/{tag}", "") for tag in ("xmin", "ymin", "xmax", "ymax")]
        x0, y0, x1, y1 = box = [number_in(corner) for corner in corners]
        if not all(abs(value) <= FARTHEST for value in box):  # NaN is not
            findings.errors.append(f"{image.file}: the box of {name!r} is {corners}, expected four numbers")
            continue
        boxes.append((x0 - 1, y0 - 1, x1, y1))  # VOC counts pixels from 1 and includes both ends
        labels.append(classes.index(name))
        difficult.append(element.findtext("difficult", "0").strip() == "1")
    clipped, _, empty = findings.clip_boxes(boxes, size, image.file.name)
    arrays = clipped, np.array(labels, np.int64), np.array(difficult, bool)
    return Record(number, image.path, *size, *arrays).select(~empty)


def _name(element: ElementTree.Element) -> str:
    return element.findtext("name", "").strip()
