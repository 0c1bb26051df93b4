"""The average precisions of detectron2's evaluator of VOC; for COCO, both sides call pycocotools."""

import contextlib
import io
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from detectron2.data import MetadataCatalog
from detectron2.evaluation import PascalVOCDetectionEvaluator
from detectron2.structures import Boxes, Instances

from cl.detection.average_precision import Detections
from cl.detection.config import Config
from cl.detection.records import DataSet, Record

METRICS = {"ap50": "AP50", "ap75": "AP75", "ap": "AP"}  # our name, detectron2's name
_numbers = count()  # for unique names: the catalog refuses to change an entry


def evaluate(detections: list[Detections], dataset: DataSet, config: Config) -> dict[str, float]:
    """The metrics of `cl.detection.average_precision.evaluate`.

    Only over the classes that have objects: the mean of the evaluator would count the others as 0. It rounds
    boxes to a tenth of a pixel and scores to three decimals.
    """
    year, split = config.test.split("/")
    present = np.unique(np.concatenate([record.labels[~record.ignored] for record in dataset.test]))
    with TemporaryDirectory() as folder:
        _write_voc(Path(folder), split, dataset)
        data = f"cl_{next(_numbers)}"
        classes = [str(label) for label in present]  # names of files in the evaluator
        MetadataCatalog.get(data).set(dirname=folder, split=split, year=int(year), thing_classes=classes)
        evaluator = PascalVOCDetectionEvaluator(data)
        evaluator.reset()
        for number, (detected, record) in enumerate(zip(detections, dataset.test, strict=True)):
            known = np.isin(detected.labels, present)
            labels = np.searchsorted(present, detected.labels[known])
            kept = _instances(Detections(detected.boxes[known], detected.scores[known], labels), record)
            evaluator.process([{"image_id": number}], [{"instances": kept}])
        with contextlib.redirect_stdout(io.StringIO()):
            results = evaluator.evaluate()["bbox"]
    return {ours: float(results[theirs]) for ours, theirs in METRICS.items()}


def _write_voc(folder: Path, split: str, dataset: DataSet) -> None:
    """The list and annotations of the test images, by number."""
    lists, annotations = folder / "ImageSets" / "Main", folder / "Annotations"
    lists.mkdir(parents=True)
    annotations.mkdir()
    (lists / f"{split}.txt").write_text("".join(f"{number}\n" for number in range(len(dataset.test))))
    for number, record in enumerate(dataset.test):
        (annotations / f"{number}.xml").write_text(_annotation(record))


def _annotation(record: Record) -> str:
    """Every tag that the evaluator reads, even if the data lacks it; boxes count from 1."""
    objects = []
    for box, label, difficult in zip(record.boxes, record.labels, record.ignored, strict=True):
        corners = zip(("xmin", "ymin", "xmax", "ymax"), np.add(box, (1, 1, 0, 0)).tolist(), strict=True)
        bounds = "".join(f"<{tag}>{round(value)}</{tag}>" for tag, value in corners)
        objects.append(
            f"<object><name>{label}</name><pose>Unspecified</pose><truncated>0</truncated>"
            f"<difficult>{int(difficult)}</difficult><bndbox>{bounds}</bndbox></object>"
        )
    return f"<annotation>{''.join(objects)}</annotation>"


def _instances(detections: Detections, record: Record) -> Instances:
    return Instances(
        (record.height, record.width),
        pred_boxes=Boxes(torch.from_numpy(detections.boxes)),
        scores=torch.from_numpy(detections.scores),
        pred_classes=torch.from_numpy(detections.labels),
    )
