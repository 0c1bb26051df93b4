"""Average precision as PASCAL VOC defines it, and as COCO does, through pycocotools."""

import contextlib
import io
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchvision.ops import box_iou

from cl.detection.config import OVERLAPS, Config
from cl.detection.records import DataSet, Record

THRESHOLDS = np.arange(50, 100, 5) / 100
AT_75 = 5  # the index of 0.75


@dataclass(frozen=True)
class Detections:
    """The n detections in one image: boxes (n, 4) and labels (n,) as in `Record`, scores (n,), masks."""

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: list[Any] | None = None  # in COCO's run-length encoding


def encode_masks(masks: np.ndarray) -> list[Any]:
    """Masks (n, H, W) as run lengths, since the pixels of a large data set would not fit in memory."""
    return [rle.encode(np.asfortranarray(mask.astype(np.uint8))) for mask in masks]


def evaluate(
    detections: list[Detections], dataset: DataSet, config: Config
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Average precisions in percent, and those of each class, (classes,), NaN for a class without objects.

    VOC: ap50, ap75 and ap (mean over overlaps 0.5 to 0.95), at eleven points for 2007. COCO: box_ap,
    box_ap50, box_ap75; box_ap_s, box_ap_m and box_ap_l for small, medium and large objects; the same for
    masks if the detector predicts them.
    """
    if config.kind == "voc":
        eleven = config.test.startswith("2007")
        table = voc(detections, dataset.test, len(dataset.classes), eleven_points=eleven)
        means = np.nanmean(table, axis=0)  # (thresholds,)
        metrics = {"ap50": float(means[0]), "ap75": float(means[AT_75]), "ap": float(means.mean())}
        return metrics, {"ap": table.mean(1), "ap50": table[:, 0], "ap75": table[:, AT_75]}
    evaluations = coco(detections, dataset, config)
    metrics = {
        f"{name}_{key}": 100 * float(value)
        for name, evaluation in evaluations.items()
        for key, value in zip(OVERLAPS, evaluation.stats, strict=False)
        if value >= 0  # -1: there is no such object
    }
    return metrics, {f"{name}_ap": _by_class(evaluation) for name, evaluation in evaluations.items()}


def voc(
    detections: list[Detections], records: list[Record], classes: int, *, eleven_points: bool
) -> np.ndarray:
    """Average precision in percent, (classes, thresholds); NaN for a class without objects.

    A detection is correct if its overlap (intersection over union) with the object that it overlaps most
    reaches the threshold and no higher-scoring detection matched that object; detections of difficult objects
    are not counted. Precision is averaged at eleven recalls (VOC 2007), or over the area under its
    non-increasing envelope (since 2010).
    """
    average = _eleven_point_average if eleven_points else _area
    result = np.full((classes, len(THRESHOLDS)), np.nan)
    for label in range(classes):
        objects = sum(int((~r.ignored[r.labels == label]).sum()) for r in records)
        if objects == 0:
            continue
        scores, matched = [], []
        for detected, record in zip(detections, records, strict=True):
            ours, theirs = detected.labels == label, record.labels == label
            order = np.argsort(-detected.scores[ours], kind="stable")
            overlaps = iou(detected.boxes[ours][order], record.boxes[theirs])
            scores.append(detected.scores[ours][order])
            matched.append(_match(overlaps, record.ignored[theirs]))
        verdicts = np.concatenate(matched)[np.argsort(-np.concatenate(scores), kind="stable")]
        for column, verdict in enumerate(verdicts.T):
            counted = verdict[verdict >= 0]
            correct = counted.cumsum()
            recall, precision = correct / objects, correct / np.arange(1, len(correct) + 1)
            result[label, column] = 100 * average(recall, precision)
    return result


def _match(overlaps: np.ndarray, difficult: np.ndarray) -> np.ndarray:
    """Verdicts (n, thresholds) on one class in one image: 1 correct, 0 wrong, -1 not counted.

    overlaps: of each detection with each object, (n, objects), in descending order of score.
    """
    matched = np.zeros((len(difficult), len(THRESHOLDS)), bool)
    verdicts = np.zeros((len(overlaps), len(THRESHOLDS)), np.int64)
    for verdict, row in zip(verdicts, overlaps, strict=True):
        if len(row):
            best = row.argmax()
            hits = row[best] >= THRESHOLDS
            verdict[hits] = -1 if difficult[best] else ~matched[best][hits]
            matched[best] |= hits
    return verdicts


def iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of boxes (n, 4) and (m, 4): (n, m), as exact as the thresholds."""
    return box_iou(*(torch.from_numpy(boxes.astype(np.float64)) for boxes in (a, b))).numpy()


def _eleven_point_average(recall: np.ndarray, precision: np.ndarray) -> float:
    return float(np.mean([precision[recall >= t].max(initial=0) for t in np.linspace(0, 1, 11)]))


def _area(recall: np.ndarray, precision: np.ndarray) -> float:
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float((np.diff(recall, prepend=0) * envelope).sum())


def coco(detections: list[Detections], dataset: DataSet, config: Config) -> dict[str, COCOeval]:
    """COCO's evaluation of boxes ("box") and, if the detector predicts masks, of masks ("mask")."""
    assert dataset.annotations is not None and dataset.categories is not None
    results = [
        {"image_id": record.image_id, "category_id": dataset.categories[label], **_shape(detected, i)}
        for detected, record in zip(detections, dataset.test, strict=True)
        for i, label in enumerate(detected.labels)
    ]
    kinds: dict[str, Literal["bbox", "segm"]] = {"box": "bbox"}
    if config.masks:
        kinds["mask"] = "segm"
    images = [record.image_id for record in dataset.test]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        # Copies, since the evaluation of masks replaces the segmentations.
        objects = [dict(annotation) for annotation in dataset.annotations["annotations"]]
        truth.dataset = dataset.annotations | {"annotations": objects}  # type: ignore[assignment]
        truth.createIndex()
        return {name: _evaluate(truth, results, kind, images) for name, kind in kinds.items()}


def _shape(detections: Detections, i: int) -> dict[str, Any]:
    x0, y0, x1, y1 = (float(v) for v in detections.boxes[i])
    shape: dict[str, Any] = {"score": float(detections.scores[i]), "bbox": [x0, y0, x1 - x0, y1 - y0]}
    if detections.masks is not None:
        shape["segmentation"] = detections.masks[i]
    return shape


def _evaluate(truth: COCO, results: list[dict], kind: Literal["bbox", "segm"], images: list[int]) -> COCOeval:
    # Copies, since loadRes modifies its argument; no boxes with masks, or it would take the area of the box.
    copies = [{key: value for key, value in r.items() if kind == "bbox" or key != "bbox"} for r in results]
    evaluation = COCOeval(truth, truth.loadRes(copies) if copies else COCO(), kind)
    evaluation.params.imgIds = images
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return evaluation


def _by_class(evaluation: COCOeval) -> np.ndarray:
    """Average precision of each class in percent, (classes,): any size, at most 100 detections per image."""
    precision = evaluation.eval["precision"][:, :, :, 0, -1]  # (thresholds, recalls, classes)
    return 100 * np.where(precision > -1, precision, np.nan).mean((0, 1))
