"""The average precisions of detectron2's own evaluators."""

import contextlib
import io
import json
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from detectron2.data import MetadataCatalog
from detectron2.evaluation import COCOEvaluator, PascalVOCDetectionEvaluator
from detectron2.structures import Boxes, Instances
from pycocotools import mask as rle

from cl.detection.average_precision import Detections
from cl.detection.config import OVERLAPS, Config
from cl.detection.data import DataSet
from cl.detection.records import Record

VOC_METRICS = {"ap50": "AP50", "ap75": "AP75", "ap": "AP"}  # our name, detectron2's name
COCO_COLUMNS = ("AP", "AP50", "AP75", "APs", "APm", "APl")  # detectron2's names of OVERLAPS

_numbers = count()  # for unique names: the catalog refuses to change an entry


def evaluate(detections: list[Detections], dataset: DataSet, config: Config) -> dict[str, float]:
    """The metrics of `cl.detection.average_precision.evaluate`."""
    with contextlib.redirect_stdout(io.StringIO()):
        results = (_voc if config.kind == "voc" else _coco)(detections, dataset, config)
    return {name: value for name, value in results.items() if not np.isnan(value)}


def _voc(detections: list[Detections], dataset: DataSet, config: Config) -> dict[str, float]:
    """Only over the classes that have objects: the evaluator's mean would count the others as zero.

    The evaluator rounds boxes to a tenth of a pixel and scores to three decimals.
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
        results = evaluator.evaluate()["bbox"]
    return {ours: float(results[theirs]) for ours, theirs in VOC_METRICS.items()}


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


def _coco(detections: list[Detections], dataset: DataSet, config: Config) -> dict[str, float]:
    assert dataset.categories is not None
    data = f"cl_{next(_numbers)}"
    kinds = {"bbox": "box", "segm": "mask"} if config.masks else {"bbox": "box"}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "annotations.json"
        path.write_text(json.dumps(dataset.annotations))
        MetadataCatalog.get(data).set(
            json_file=str(path),
            thing_classes=dataset.classes,
            thing_dataset_id_to_contiguous_id={c: label for label, c in enumerate(dataset.categories)},
        )
        evaluator = COCOEvaluator(data, tasks=tuple(kinds), distributed=False)
    evaluator.reset()
    for detected, record in zip(detections, dataset.test, strict=True):
        evaluator.process([{"image_id": record.image_id}], [{"instances": _instances(detected, record)}])
    results = evaluator.evaluate(img_ids=[record.image_id for record in dataset.test])
    return {
        f"{ours}_{metric}": float(results[theirs][column])
        for theirs, ours in kinds.items()
        for metric, column in zip(OVERLAPS, COCO_COLUMNS, strict=True)
    }


def _instances(detections: Detections, record: Record) -> Instances:
    instances = Instances(
        (record.height, record.width),
        pred_boxes=Boxes(torch.from_numpy(detections.boxes)),
        scores=torch.from_numpy(detections.scores),
        pred_classes=torch.from_numpy(detections.labels),
    )
    if detections.masks is not None:
        masks = [torch.from_numpy(rle.decode(mask)) for mask in detections.masks]
        instances.pred_masks = torch.stack(masks) if masks else torch.zeros(0, record.height, record.width)
    return instances
