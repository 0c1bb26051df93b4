"""Data in the layout of COCO: one list of all objects of a split."""

import json
from math import isfinite
from pathlib import Path
from typing import Any, TypeGuard

from cl.detection.records import Findings, Record, arrays, inside, measured, text


def read(
    root: Path, split: str, findings: Findings, *, masks: bool = False, test: bool = False
) -> tuple[list[Record], list[int], list[str]]:
    """The images of `split` ("train2017") below `root`, and the category number and name of each label.

    Args:
        masks: an object without one is left out,
        test: which is an error here, as the evaluators read the list as well.

    Raises:
        ValueError: the list of annotations is missing, or none. All else goes to `findings`.
    """
    path = root / "annotations" / f"instances_{split}.json"
    try:
        content = json.loads(text(path))
        images = {image["id"]: image for image in content["images"]}
        if len(images) < len(content["images"]):
            findings.wrong.append(f"{path}: {len(content['images'])} images have {len(images)} different ids")
        names = {category["id"]: category["name"] for category in content["categories"]}
        annotations = content["annotations"]
        of_image: dict[int, list[dict]] = {identity: [] for identity in images}
        known: set[int] = set()
        for number, annotation in enumerate(annotations):
            where = f"{path}: annotation {annotation.get('id', f'number {number}')}"
            if problem := _problem(annotation, known, images, names):
                findings.wrong.append(f"{where} {problem}")
            else:
                known.add(annotation["id"])
                of_image[annotation["image_id"]].append(annotation)
        stated = [
            (root / split / image["file_name"], (image["width"], image["height"]))
            for image in images.values()
        ]
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no list of COCO's instances ({type(error).__name__}: {error})"
        ) from error
    categories = sorted(names)
    records = []
    for identity, (file, size) in zip(images, stated, strict=True):
        width, height = measured(file, size, path, findings)
        if masks:
            _check_masks(of_image[identity], file, width, height, findings, test=test)
        records.append(_record(identity, file, width, height, of_image[identity], categories, findings))
    return records, categories, [names[category] for category in categories]


def _problem(annotation: dict, known: set[int], images: dict, names: dict) -> str | None:
    """What makes an annotation unusable, as the end of a sentence; `known` are the ids so far."""
    identity = annotation.get("id")
    if not isinstance(identity, int) or identity < 1 or identity in known:
        return "needs an id of its own, an integer from 1 (pycocotools takes 0 for no object)"
    if annotation.get("image_id") not in images:
        return f"is of image {annotation.get('image_id')}, which is not listed"
    if annotation.get("category_id") not in names:
        return f"has category {annotation.get('category_id')}, which is not listed"
    box = annotation.get("bbox")
    if not (_are_numbers(box) and len(box) == 4):
        return f"has bbox {box}, expected four numbers"
    if not _are_numbers([annotation.get("area")]) or annotation.get("iscrowd") not in (0, 1):
        return f"has area {annotation.get('area')} and iscrowd {annotation.get('iscrowd')}, expected a number, and 0 or 1"
    return None


def _are_numbers(values: Any) -> TypeGuard[list[float]]:
    return isinstance(values, list) and all(isinstance(v, int | float) and isfinite(v) for v in values)


def _check_masks(
    annotations: list[dict], file: Path, width: int, height: int, findings: Findings, *, test: bool
) -> None:
    """Leave out polygons of less than three corners, runs of another size, and objects of which nothing remains."""
    for annotation in list(annotations):
        given = annotation.get("segmentation")
        if isinstance(given, list):
            usable: Any = [p for p in given if _are_numbers(p) and len(p) >= 6 and len(p) % 2 == 0]
        else:
            runs = given if isinstance(given, dict) and given.get("size") == [height, width] else {}
            usable = given if isinstance(runs.get("counts"), str | list) else None
        if usable and usable == given:
            continue
        where = f"{file.name} ({annotation['id']})"
        if test:
            findings.wrong.append(
                f"{where}: the mask of a test object is neither polygons nor runs of {height}x{width} pixels"
            )
        elif usable:
            findings.noted["objects with polygons of less than three corners, which are left out"].append(
                where
            )
            annotation["segmentation"] = usable
        else:
            findings.noted["objects without a mask, left out"].append(where)
            annotations.remove(annotation)


def _record(
    identity: int,
    file: Path,
    width: int,
    height: int,
    annotations: list[dict],
    categories: list[int],
    findings: Findings,
) -> Record:
    boxes = [(x, y, x + w, y + h) for x, y, w, h in (a["bbox"] for a in annotations)]
    labels = [categories.index(a["category_id"]) for a in annotations]
    crowds = [bool(a["iscrowd"]) for a in annotations]
    segmentations = [a.get("segmentation") for a in annotations]
    record = Record(identity, file, width, height, *arrays(boxes, labels, crowds), segmentations)
    if any(crowds):
        findings.noted["images with crowds, which are not trained on"].append(file.name)
    return inside(record, file.name, findings)
