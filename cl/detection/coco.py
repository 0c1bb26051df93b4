"""Data in the layout of COCO: one list of all objects of a split."""

import json
from math import isfinite
from pathlib import Path
from typing import Any

from cl.detection.records import Findings, Record, arrays, inside, measured, text


def read(root: Path, split: str, findings: Findings, *, masks: bool = False) -> tuple[list[Record], list[int], list[str]]:
    """The images of `split` ("train2017") below `root`, and the category number and name of each label.

    Args:
        masks: an object without one is left out.

    Raises:
        ValueError: the list of annotations is missing, or none. All else goes to `findings`.
    """
    path = root / "annotations" / f"instances_{split}.json"
    try:
        content = json.loads(text(path))
        images = {image["id"]: image for image in content["images"]}
        names = {category["id"]: category["name"] for category in content["categories"]}
        annotations = content["annotations"]
        of_image: dict[int, list[dict]] = {identity: [] for identity in images}
        for number, annotation in enumerate(annotations):
            where = f"{path}: annotation {annotation.get('id', f'number {number}')}"
            if problem := _problem(annotation, images, names):
                findings.wrong.append(f"{where} {problem}")
            else:
                of_image[annotation["image_id"]].append(annotation)
        stated = [(root / split / image["file_name"], (image["width"], image["height"])) for image in images.values()]
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no list of COCO's instances ({type(error).__name__}: {error})") from error
    categories = sorted(names)
    records = []
    for identity, (file, size) in zip(images, stated, strict=True):
        width, height = measured(file, size, path, findings)
        records.append(_record(identity, file, width, height, of_image[identity], categories, findings, masks=masks))
    return records, categories, [names[category] for category in categories]


def _problem(annotation: dict, images: dict, names: dict) -> str | None:
    """What makes an annotation unusable, as the end of a sentence."""
    if annotation.get("image_id") not in images:
        return f"is of image {annotation.get('image_id')}, which is not listed"
    if annotation.get("category_id") not in names:
        return f"has category {annotation.get('category_id')}, which is not listed"
    box = annotation.get("bbox")
    if not (isinstance(box, list) and len(box) == 4 and all(isinstance(v, int | float) and isfinite(v) for v in box)):
        return f"has bbox {box}, expected four numbers"
    return None


def _record(
    identity: int,
    file: Path,
    width: int,
    height: int,
    annotations: list[dict],
    categories: list[int],
    findings: Findings,
    *,
    masks: bool,
) -> Record:
    if masks:
        bad = [a for a in annotations if not _is_mask(a.get("segmentation"))]
        for annotation in bad:
            findings.noted["objects without a mask, left out"].append(f"{file.name} ({annotation.get('id')})")
        annotations = [a for a in annotations if a not in bad]
    boxes = [(x, y, x + w, y + h) for x, y, w, h in (a["bbox"] for a in annotations)]
    labels = [categories.index(a["category_id"]) for a in annotations]
    crowds = [bool(a.get("iscrowd", 0)) for a in annotations]
    segmentations = [a.get("segmentation") for a in annotations]
    record = Record(identity, file, width, height, *arrays(boxes, labels, crowds), segmentations)
    if any(crowds):
        findings.noted["images with crowds, which are not trained on"].append(file.name)
    return inside(record, file.name, findings)


def _is_mask(segmentation: Any) -> bool:
    """Runs, or polygons of three corners or more."""
    if isinstance(segmentation, list):
        return bool(segmentation) and all(len(polygon) >= 6 and len(polygon) % 2 == 0 for polygon in segmentation)
    return isinstance(segmentation, dict)
