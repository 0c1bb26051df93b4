"""Data in the layout of PASCAL VOC: a file of XML an image."""

from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from cl.detection.records import Findings, Record, arrays, inside, measured, text

CLASSES = [
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


def read(
    root: Path, train: list[str], test: str, findings: Findings
) -> tuple[list[str], list[Record], list[Record]]:
    """The classes, and the images of the splits `train` and `test` ("2007/trainval") below `root` = VOCdevkit.

    Classes are the twenty, or, for an own set, all names in its annotations, sorted; labels are positions among them.

    Raises:
        ValueError: a list of images is missing. All else goes to `findings`.
    """
    parsed = {split: _parsed(root, split, findings) for split in (*train, test)}
    names = set()
    for _, file, xml in chain(*parsed.values()):
        own = {_name(element) for element in xml.iter("object")}
        findings.wrong.extend(
            f"{file}: class {name!r}, expected {name.lower()!r}" for name in own if _is_misspelt(name)
        )
        if "" in own:
            findings.wrong.append(f"{file}: an object without a name")
        names |= own
    classes = CLASSES if names <= set(CLASSES) else sorted(names)
    if names - set(CLASSES):
        findings.noted["classes in the annotations, taken instead of VOC's twenty"] += classes
    images = [
        [
            _record(number, *file, classes, findings)
            for number, file in enumerate(chain(*(parsed[s] for s in splits)))
        ]
        for splits in (train, [test])
    ]
    return classes, images[0], images[1]


def _parsed(root: Path, split: str, findings: Findings) -> list[tuple[Path, Path, ElementTree.Element]]:
    """Image, annotation file and its content, for each image of a split."""
    year, name = split.split("/")
    folder = root / f"VOC{year}"
    files = []
    for image in text(folder / "ImageSets" / "Main" / f"{name}.txt").split():
        file = folder / "Annotations" / f"{image}.xml"
        try:
            files.append(
                (folder / "JPEGImages" / f"{image}.jpg", file, ElementTree.fromstring(file.read_bytes()))
            )
        except FileNotFoundError:
            findings.wrong.append(f"{file}: missing")
        except ElementTree.ParseError as error:
            findings.wrong.append(f"{file}: no XML ({error})")
    return files


def _record(
    identity: int, image: Path, file: Path, xml: ElementTree.Element, classes: list[str], findings: Findings
) -> Record:
    stated = [xml.findtext(f"size/{tag}", "") for tag in ("width", "height")]
    width, height = measured(image, stated if all(stated) else None, file, findings)
    boxes, labels, difficult = [], [], []
    for element in xml.iter("object"):
        name = _name(element)
        corners = [element.findtext(f"bndbox/{tag}", "") for tag in ("xmin", "ymin", "xmax", "ymax")]
        if not all(_is_number(corner) for corner in corners):
            findings.wrong.append(f"{file}: the box of {name!r} is {corners}, expected four numbers")
        else:
            x0, y0, x1, y1 = map(float, corners)
            boxes.append((x0 - 1, y0 - 1, x1, y1))  # VOC counts pixels from 1, both ends included
            labels.append(classes.index(name))
            difficult.append(element.findtext("difficult", "0").strip() == "1")
    record = Record(identity, image, width, height, *arrays(boxes, labels, difficult))
    return inside(record, file.name, findings)


def _name(element: ElementTree.Element) -> str:
    return element.findtext("name", "").strip()


def _is_misspelt(name: str) -> bool:
    return name not in CLASSES and name.lower() in CLASSES


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
