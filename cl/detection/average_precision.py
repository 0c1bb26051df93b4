"""Average precision in the manner of PASCAL VOC, and of COCO through pycocotools."""

import contextlib
import io
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from cl.detection.config import Config
from cl.detection.data import DataSet
from cl.detection.records import Record

THRESHOLDS = np.arange(50, 100, 5) / 100
AT_75 = 5  # where 0.75 stands among them
COCO_METRICS = ("ap", "ap50", "ap75", "ap_s", "ap_m", "ap_l")


@dataclass(frozen=True)
class Detections:
    """What a detector found in one image, as in `Record`: boxes (n, 4), scores (n,), labels (n,), n masks in COCO's runs."""

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: list[Any] | None = None


def encoded(masks: np.ndarray) -> list[Any]:
    """Masks (n, H, W) as runs: of a large data set they would not fit in memory."""
    return [rle.encode(np.asfortranarray(mask.astype(np.uint8))) for mask in masks]


def evaluate(
    found: list[Detections], dataset: DataSet, config: Config
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Average precisions in percent, and those of each class, (classes,), NaN for a class without objects.

    VOC: ap50, ap75 and ap (mean over overlaps 0.5 to 0.95), at eleven points for 2007. COCO: box_ap, box_ap50, box_ap75, of
    small, medium and large objects box_ap_s, box_ap_m and box_ap_l, and where the detector finds masks the same of masks.
    """
    if config.kind == "voc":
        table = voc(found, dataset.test, len(dataset.classes), eleven_points=eleven_points(config))
        means = np.nanmean(table, axis=0)  # (thresholds,)
        metrics = {"ap50": float(means[0]), "ap75": float(means[AT_75]), "ap": float(means.mean())}
        return metrics, {"ap": table.mean(1), "ap50": table[:, 0], "ap75": table[:, AT_75]}
    evaluations = coco(found, dataset, config)
    metrics = {
        f"{name}_{key}": 100 * float(value)
        for name, evaluation in evaluations.items()
        for key, value in zip(COCO_METRICS, evaluation.stats, strict=False)
        if value >= 0  # -1: there is no such object
    }
    return metrics, {
        f"{name}_ap": _of_classes(evaluation, len(dataset.classes))
        for name, evaluation in evaluations.items()
    }


def eleven_points(config: Config) -> bool:
    """Whether the metric is that of VOC 2007."""
    return config.test.startswith("2007")


def voc(found: list[Detections], records: list[Record], classes: int, *, eleven_points: bool) -> np.ndarray:
    """Average precision in percent, (classes, thresholds); NaN for a class without objects.

    A detection is right if its overlap (intersection over union) with the object it overlaps most reaches the threshold
    and that object was not found before with a higher score; difficult objects count neither way. The precision is
    averaged at eleven recalls (VOC 2007), or over the area under its non-increasing envelope (since 2010).
    """
    result = np.full((classes, len(THRESHOLDS)), np.nan)
    for label in range(classes):
        objects = sum(int((~r.ignored[r.labels == label]).sum()) for r in records)
        if objects == 0:
            continue
        scores, right = _judge_all(found, records, label)
        right = right[np.argsort(-scores, kind="stable")]
        for column in range(len(THRESHOLDS)):
            judged = right[:, column][right[:, column] >= 0]  # without those on difficult objects
            hits = judged.cumsum()
            recall, precision = hits / objects, hits / np.arange(1, len(hits) + 1)
            result[label, column] = 100 * (_eleven if eleven_points else _area)(recall, precision)
    return result


def _judge_all(found: list[Detections], records: list[Record], label: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores (n,) of all detections of a class, and for each threshold 1 right, 0 wrong, -1 does not count (n, T)."""
    scores, right = [], []
    for detections, record in zip(found, records, strict=True):
        mine, theirs = detections.labels == label, record.labels == label
        order = np.argsort(-detections.scores[mine], kind="stable")
        scores.append(detections.scores[mine][order])
        overlaps = overlap(detections.boxes[mine][order], record.boxes[theirs])
        right.append(np.stack([_judge(overlaps, record.ignored[theirs], t) for t in THRESHOLDS], axis=1))
    return np.concatenate(scores), np.concatenate(right)


def _judge(overlaps: np.ndarray, difficult: np.ndarray, threshold: float) -> np.ndarray:
    """Detections of one image and class by falling score: overlaps (n, objects) to (n,) of 1, 0 and -1."""
    taken = np.zeros(len(difficult), bool)
    result = np.zeros(len(overlaps), np.int64)
    for i, row in enumerate(overlaps):
        if not len(row) or row.max() < threshold:
            continue
        best = int(row.argmax())
        if difficult[best]:
            result[i] = -1
        elif not taken[best]:
            result[i], taken[best] = 1, True
    return result


def overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of boxes (n, 4) and (m, 4): (n, m)."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    intersection = (high - low).clip(0).prod(2)
    areas = [(x[:, 2:] - x[:, :2]).prod(1) for x in (a, b)]
    return intersection / (areas[0][:, None] + areas[1][None] - intersection)


def _eleven(recall: np.ndarray, precision: np.ndarray) -> float:
    return float(np.mean([precision[recall >= t].max(initial=0) for t in np.linspace(0, 1, 11)]))


def _area(recall: np.ndarray, precision: np.ndarray) -> float:
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float((np.diff(recall, prepend=0) * envelope).sum())


def coco(found: list[Detections], dataset: DataSet, config: Config) -> dict[str, COCOeval]:
    """COCO's evaluation of boxes ("box") and, where the detector outlines objects, of masks ("mask")."""
    assert dataset.annotations is not None and dataset.categories is not None
    results = [
        {
            "image_id": r.identity,
            "category_id": dataset.categories[label],
            "score": float(score),
            **_shape(d, i),
        }
        for d, r in zip(found, dataset.test, strict=True)
        for i, (score, label) in enumerate(zip(d.scores, d.labels, strict=True))
    ]
    kinds: dict[str, Literal["bbox", "segm"]] = {"box": "bbox"}
    if config.masks:
        kinds["mask"] = "segm"
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(dataset.annotations))
        return {
            name: _evaluate(truth, results, kind, [r.identity for r in dataset.test])
            for name, kind in kinds.items()
        }


def _shape(detections: Detections, i: int) -> dict:
    x0, y0, x1, y1 = (float(v) for v in detections.boxes[i])
    shape: dict = {"bbox": [x0, y0, x1 - x0, y1 - y0]}
    if detections.masks is not None:
        shape["segmentation"] = detections.masks[i]
    return shape


def _evaluate(truth: COCO, results: list[dict], kind: Literal["bbox", "segm"], images: list[int]) -> COCOeval:
    # loadRes deletes the boxes of results with masks, hence copies; and with boxes, the area of an object were its box's.
    copies = [{key: value for key, value in r.items() if kind == "bbox" or key != "bbox"} for r in results]
    evaluation = COCOeval(truth, truth.loadRes(copies) if copies else COCO(), kind)
    evaluation.params.imgIds = images
    if results:
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    else:
        evaluation.stats = np.zeros(12)
    return evaluation


def _of_classes(evaluation: COCOeval, classes: int) -> np.ndarray:
    """All areas, 100 detections an image."""
    if not evaluation.eval:
        return np.zeros(classes)
    precision = evaluation.eval["precision"][:, :, :, 0, -1]  # (thresholds, recalls, classes)
    return 100 * np.where(precision > -1, precision, np.nan).mean((0, 1))
