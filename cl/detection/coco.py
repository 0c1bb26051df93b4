"""Data in COCO's layout: one JSON file lists all objects of a split."""

import json
import reprlib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from cl.console.wording import counted
from cl.detection.records import FARTHEST, DataSet, Findings, Record, read_text

LARGEST_AREA = 1e10  # pycocotools ignores larger objects without a word, and those below 0


class _Image(NamedTuple):
    """An image as the annotation file describes it."""

    image_id: int
    path: Path
    size: tuple[int, int]  # width and height
    annotations: list[dict]


def read(root: Path, train: list[str], test: str, findings: Findings, *, masks: bool) -> DataSet:
    """The images of `train` and `test` ("train2017") below `root`; problems go to `findings`.

    Test objects without an id or area are errors; so are those without a mask if `masks`, which drops such
    training objects.
    """
    tested, names, annotations = _split(root, test, findings, masks=masks, test=True)
    trained: list[Record] = []
    for split in train:
        records, found, _ = _split(root, split, findings, masks=masks, test=False)
        if found != names:
            findings.errors.append(
                f"instances_{split}.json and instances_{test}.json in {root} have different categories"
            )
        trained += records
    categories = sorted(names)
    known = {int(label) for record in trained for label in record.labels}
    for label, category in enumerate(categories):
        if label not in known:
            findings.notes["categories without training objects"].append(names[category])
    classes = [names[category] for category in categories]
    return DataSet(classes, trained, tested, findings, annotations, categories)


def _split(
    root: Path, split: str, findings: Findings, *, masks: bool, test: bool
) -> tuple[list[Record], dict[Any, str], dict[str, list[dict]]]:
    """The images of a split, the names of its categories, and what evaluators read, in COCO's format."""
    path = root / "annotations" / f"instances_{split}.json"
    text = read_text(path)
    try:
        images, names = _parse(text, path, root / split, findings, test=test)
        categories = sorted(names)
        sorted(images, key=lambda image: image.image_id)  # the evaluators sort them after training
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a COCO instances file ({type(error).__name__}: {error})") from error
    records: list[Record] = []
    evaluated: dict[str, list[dict]] = {"images": [], "annotations": []}
    for image in images:
        size = findings.image_size(image.path, image.size, path)
        boxes, annotations = _usable(image._replace(size=size), findings, masks=masks, test=test)
        labels = np.array([categories.index(a["category_id"]) for a in annotations], np.int64)
        crowds = np.array([a["iscrowd"] for a in annotations], bool)
        if crowds.any():
            findings.notes["images with crowds, which are not used for training"].append(image.path.name)
        segmentations = [a.get("segmentation") for a in annotations]
        records.append(Record(image.image_id, image.path, *size, boxes, labels, crowds, segmentations))
        evaluated["images"].append({"id": image.image_id, "width": size[0], "height": size[1]})
        evaluated["annotations"] += annotations
    evaluated["categories"] = [{"id": category, "name": name} for category, name in names.items()]
    return records, names, evaluated


def _parse(
    text: str, path: Path, folder: Path, findings: Findings, *, test: bool
) -> tuple[list[_Image], dict[int, str]]:
    """The images, with their usable annotations, and the category names by id."""
    content = json.loads(text)
    images = {image["id"]: image for image in content["images"]}
    if len(images) < len(content["images"]):
        findings.errors.append(f"{path}: {len(content['images'])} images have {counted(len(images), 'ids')}")
    for name, times in Counter(image["file_name"] for image in content["images"]).items():
        if times > 1:
            findings.errors.append(f"{path}: lists {name!r} {times} times, expected once")
    names = {category["id"]: category["name"] for category in content["categories"]}
    if unnamed := [name for name in names.values() if not isinstance(name, str) or not name]:
        raise TypeError(f"a category has the name {unnamed[0]!r}, expected text")
    by_image: dict[int, list[dict]] = {image_id: [] for image_id in images}
    known: set[int] = set()
    for number, annotation in enumerate(content["annotations"]):
        annotation_id = annotation.get("id", f"number {number}")
        annotation = {"iscrowd": 0, **annotation}  # as in COCO's own tools
        if problem := _problem(annotation, known, images, names, test=test):
            findings.errors.append(f"{path}: annotation {annotation_id} {problem}")
        else:
            known.add(annotation_id)
            by_image[annotation["image_id"]].append(annotation)
    return [
        _Image(image_id, folder / image["file_name"], (image["width"], image["height"]), by_image[image_id])
        for image_id, image in images.items()
    ], names


def _problem(annotation: dict, known: set[int], images: dict, names: dict, *, test: bool) -> str | None:
    """Why an annotation is unusable, as the predicate of a sentence; `known` holds the ids seen so far.

    Only evaluators need a number as id, and the area.
    """
    annotation_id, box, area = (annotation.get(key) for key in ("id", "bbox", "area"))
    image, category, crowd = (annotation.get(key) for key in ("image_id", "category_id", "iscrowd"))
    if test and (not isinstance(annotation_id, int) or annotation_id < 1 or annotation_id in known):
        return "needs a unique integer id of at least 1 (pycocotools takes 0 for none); number them from 1"
    if image not in images:
        return f"has image_id {image!r}, which is not listed (the first is {next(iter(images), None)!r})"
    if category not in names:
        return f"has category_id {category!r}, which is not listed (the first is {next(iter(names), None)!r})"
    if not (_are_numbers(box) and len(box) == 4):
        return f"has bbox {reprlib.repr(box)}, expected four numbers"
    if crowd not in (0, 1):
        return f"has iscrowd {crowd!r}, expected 0 or 1"
    if test and not (_are_numbers([area], LARGEST_AREA) and area is not None and area >= 0):
        return f"has area {reprlib.repr(area)}, expected the object's pixels, which tell small from large"
    return None


def _are_numbers(values: Any, largest: float = FARTHEST) -> TypeGuard[list[float]]:
    """Whether it is a list of finite numbers whose size is at most `largest`."""
    return isinstance(values, list) and all(isinstance(v, int | float) and abs(v) <= largest for v in values)


def _usable(image: _Image, findings: Findings, *, masks: bool, test: bool) -> tuple[np.ndarray, list[dict]]:
    """The n usable objects: their boxes (n, 4), clipped to the image as detections are, and annotations.

    Objects whose box has no area are left out; with `masks`, also useless polygons, and objects left with no
    mask.
    """
    corners = [(x, y, x + w, y + h) for x, y, w, h in (a["bbox"] for a in image.annotations)]
    clipped = findings.clip_boxes(corners, image.size, image.path.name)
    boxes, annotations = [], []
    for annotation, box, beyond, empty in zip(image.annotations, *clipped, strict=True):
        if beyond:
            x0, y0, x1, y1 = box.tolist()
            annotation = {**annotation, "bbox": [x0, y0, x1 - x0, y1 - y0]}
        if empty:
            continue
        if masks:
            if not (mask := _mask(annotation, image, findings, test=test)):
                continue
            annotation = {**annotation, "segmentation": mask}
        boxes.append(box)
        annotations.append(annotation)
    return np.array(boxes, np.float32).reshape(-1, 4), annotations


def _mask(annotation: dict, image: _Image, findings: Findings, *, test: bool) -> Any:
    """The mask of an object without useless polygons; falsy, with a finding, if nothing is left."""
    given = annotation.get("segmentation")
    usable = _usable_mask(given, image.size)
    place = f"{image.path.name} ({annotation.get('id')})"
    if test and not (usable and usable == given):
        width, height = image.size
        findings.errors.append(
            f"{place}: the mask of a test object must be polygons or a run-length encoding "
            f"of {height}x{width} pixels"
        )
    elif not usable:
        findings.notes["objects without a mask, dropped"].append(place)
    elif usable != given:
        findings.notes["objects that lost polygons of under three points or far outside"].append(place)
    return usable


def _usable_mask(segmentation: Any, size: tuple[int, int]) -> Any:
    """The polygons of at least three points, or a run-length mask of this size; falsy if there are none.

    pycocotools trusts what it gets: far coordinates exhaust the memory, and runs that do not fill the image
    leave the rest of the mask undefined.
    """
    width, height = size
    if isinstance(segmentation, list):
        return [
            p
            for p in segmentation
            if _are_numbers(p) and len(p) >= 6 and len(p) % 2 == 0
            if _meets(p[::2], width) and _meets(p[1::2], height)
        ]
    if not isinstance(segmentation, dict) or segmentation.get("size") != [height, width]:
        return None
    counts = segmentation.get("counts")
    runs = _runs(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or not all(isinstance(run, int) and run >= 0 for run in runs):
        return None
    return segmentation if sum(runs) == width * height else None


def _meets(coordinates: list[float], side: int) -> bool:
    """Whether a polygon reaches into the image, and no further beyond it than the image is long."""
    low, high = min(coordinates), max(coordinates)
    return -side <= low < side and 0 < high <= 2 * side


def _runs(text: str) -> list[int] | None:
    """The lengths in a compressed run-length encoding; None if it is cut, or holds other characters.

    COCO's format: groups of five bits from the lowest, with a bit that says whether more follow and the sign
    in the last; from the fourth run on, the difference from the run before the last.
    """
    runs: list[int] = []
    value = shift = 0
    for character in text:
        code = ord(character) - 48
        if not 0 <= code < 64 or shift > 30:  # runs have 32 bits
            return None
        value |= (code & 31) << shift
        shift += 5
        if not code & 32:
            value -= (code & 16) << shift - 4
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    return None if shift else runs
