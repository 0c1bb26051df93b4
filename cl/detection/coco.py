"""Data in the layout of COCO: one list of all objects of a split."""

import json
from pathlib import Path
from typing import Any

from cl.detection.records import Findings, Record, arrays, inside, text


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
        records.append(_record(image, file, of_image[image["id"]], categories, findings, masks=masks))
    return records, categories, [names[category] for category in categories]


def _record(
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
    record = Record(image["id"], file, image["width"], image["height"], *arrays(boxes, labels, crowds), segmentations)
    if any(crowds):
        findings.noted["images with crowds, which are not trained on"].append(file.name)
    return inside(record, file.name, findings)


def _is_mask(segmentation: Any) -> bool:
    """Runs, or polygons of three corners or more."""
    if isinstance(segmentation, list):
        return bool(segmentation) and all(len(polygon) >= 6 and len(polygon) % 2 == 0 for polygon in segmentation)
    return isinstance(segmentation, dict)
