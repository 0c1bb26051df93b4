"""Data in the layout of PASCAL VOC: a file of XML an image."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image as Picture

from cl.detection.records import Findings, Record, arrays, inside, text

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


def _names(root: Path, split: str) -> tuple[Path, list[str]]:
    """The folder of a split ("2007/trainval") and the names of its images."""
    year, name = split.split("/")
    folder = root / f"VOC{year}"
    return folder, text(folder / "ImageSets" / "Main" / f"{name}.txt").split()


def class_names(root: Path, splits: list[str], findings: Findings) -> list[str]:
    """The twenty classes, or, for an own set, every name in the annotations of `splits`, sorted."""
    names = set()
    for split in splits:
        folder, images = _names(root, split)
        for image in images:
            if (xml := _parsed(folder / "Annotations" / f"{image}.xml", findings)) is not None:
                names |= {element.findtext("name", "") for element in xml.iter("object")}
    findings.stop()
    return CLASSES if names <= set(CLASSES) else sorted(names)


def _parsed(path: Path, findings: Findings) -> ElementTree.Element | None:
    try:
        return ElementTree.fromstring(path.read_bytes())
    except (FileNotFoundError, ElementTree.ParseError) as error:
        findings.wrong.append(f"{path}: {'missing' if isinstance(error, FileNotFoundError) else f'no XML ({error})'}")
        return None


def read(root: Path, splits: list[str], classes: list[str], findings: Findings) -> list[Record]:
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
                records.append(_record(len(records), image, xml, classes, file, findings))
    return records


def _record(identity: int, image: Path, xml: ElementTree.Element, classes: list[str], file: Path, findings: Findings) -> Record:
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
    record = Record(identity, image, width, height, *arrays(boxes, labels, difficult))
    return inside(record, file.name, findings)


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
