"""Data in COCO's layout: one JSON file lists all objects of a split."""

import json
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, TypeGuard

from cl.console.wording import counted
from cl.detection.records import Findings, Record, clip_boxes, image_size, read_text, to_arrays


@dataclass(frozen=True)
class _Image:
    """An image as the annotation file describes it."""

    image_id: int
    path: Path
    size: tuple[int, int]  # width and height
    annotations: list[dict]


def read(
    root: Path, split: str, findings: Findings, *, masks: bool = False, test: bool = False
) -> tuple[list[Record], list[int], list[str]]:
    """The images of `split` ("train2017") below `root`, and the category id and name of each label.

    Args:
        masks: drop objects without a mask.
        test: report them as errors instead, since the evaluators read the same file.

    Raises:
        ValueError: the annotation file is missing or malformed. All other problems go to `findings`.
    """
    path = root / "annotations" / f"instances_{split}.json"
    try:
        images, names = _parse(path, root / split, findings)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a COCO instances file ({type(error).__name__}: {error}): replace it"
        ) from error
    categories = sorted(names)
    records = []
    for image in images:
        size = image_size(image.path, image.size, path, findings)
        image = replace(image, size=size)
        if masks:
            image = _with_usable_masks(image, findings, test=test)
        records.append(_record(image, categories, findings))
    return records, categories, [names[category] for category in categories]


def _parse(path: Path, folder: Path, findings: Findings) -> tuple[list[_Image], dict[int, str]]:
    """The images, with their usable annotations, and the category names by id."""
    content = json.loads(read_text(path))
    images = {image["id"]: image for image in content["images"]}
    if len(images) < len(content["images"]):
        findings.errors.append(
            f"{path}: {len(content['images'])} images have only {counted(len(images), 'distinct ids')}"
        )
    names = {category["id"]: category["name"] for category in content["categories"]}
    by_image: dict[int, list[dict]] = {image_id: [] for image_id in images}
    known: set[int] = set()
    for number, annotation in enumerate(content["annotations"]):
        annotation_id = annotation.get("id", f"number {number}")
        if problem := _problem(annotation, known, images, names):
            findings.errors.append(f"{path}: annotation {annotation_id} {problem}")
        else:
            known.add(annotation_id)
            by_image[annotation["image_id"]].append(annotation)
    return [
        _Image(image_id, folder / image["file_name"], (image["width"], image["height"]), by_image[image_id])
        for image_id, image in images.items()
    ], names


def _problem(annotation: dict, known: set[int], images: dict, names: dict) -> str | None:
    """Why an annotation is unusable, as the predicate of a sentence; `known` holds the ids seen so far."""
    annotation_id, box, area = (annotation.get(key) for key in ("id", "bbox", "area"))
    image, category, crowd = (annotation.get(key) for key in ("image_id", "category_id", "iscrowd"))
    if not isinstance(annotation_id, int) or annotation_id < 1 or annotation_id in known:
        return (
            "needs a unique integer id of at least 1 (pycocotools takes 0 for no object); number them from 1"
        )
    if image not in images:
        return f"has image_id {image!r}, which is not listed"
    if category not in names:
        return f"has category_id {category!r}, which is not listed"
    if not (_are_numbers(box) and len(box) == 4):
        return f"has bbox {box}, expected four numbers"
    if not _are_numbers([area]) or crowd not in (0, 1):
        return f"has area {area} and iscrowd {crowd}, expected a number and 0 or 1"
    return None


def _are_numbers(values: Any) -> TypeGuard[list[float]]:
    return isinstance(values, list) and all(isinstance(v, int | float) and isfinite(v) for v in values)


def _with_usable_masks(image: _Image, findings: Findings, *, test: bool) -> _Image:
    """The image without useless polygons, and without objects left with no mask."""
    kept = []
    for annotation in image.annotations:
        given = annotation.get("segmentation")
        usable = _usable_mask(given, image.size)
        place = f"{image.path.name} ({annotation['id']})"
        if usable and usable == given:
            kept.append(annotation)
        elif test:
            width, height = image.size
            findings.errors.append(
                f"{place}: the mask of a test object must be polygons or a run-length encoding "
                f"of {height}x{width} pixels"
            )
        elif usable:
            findings.notes[
                "objects that lost polygons of fewer than three points, or far outside the image"
            ].append(place)
            kept.append({**annotation, "segmentation": usable})
        else:
            findings.notes["objects without a mask, dropped"].append(place)
    return replace(image, annotations=kept)


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
            if all(-width <= x <= 2 * width for x in p[::2])
            and all(-height <= y <= 2 * height for y in p[1::2])
        ]
    if not isinstance(segmentation, dict) or segmentation.get("size") != [height, width]:
        return None
    counts = segmentation.get("counts")
    runs = _runs(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or not all(isinstance(run, int) and run >= 0 for run in runs):
        return None
    return segmentation if sum(runs) == width * height else None


def _runs(text: str) -> list[int] | None:
    """The lengths in a compressed run-length encoding; None if it is cut.

    COCO's format: groups of five bits from the lowest, with a bit that says whether more follow and the sign
    in the last; from the fourth run on, the difference from the run before the last.
    """
    runs: list[int] = []
    value = shift = 0
    for character in text:
        code = ord(character) - 48
        value |= (code & 31) << shift
        shift += 5
        if not code & 32:
            value -= (code & 16) << shift - 4
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    return None if shift else runs


def _record(image: _Image, categories: list[int], findings: Findings) -> Record:
    boxes = [(x, y, x + w, y + h) for x, y, w, h in (a["bbox"] for a in image.annotations)]
    labels = [categories.index(a["category_id"]) for a in image.annotations]
    crowds = [bool(a["iscrowd"]) for a in image.annotations]
    segmentations = [a.get("segmentation") for a in image.annotations]
    arrays = to_arrays(boxes, labels, crowds)
    record = Record(image.image_id, image.path, *image.size, *arrays, segmentations)
    if any(crowds):
        findings.notes["images with crowds, which are not used for training"].append(image.path.name)
    return clip_boxes(record, image.path.name, findings)
