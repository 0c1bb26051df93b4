"""detectron2's own models and evaluators, configured by `settings`.

`make detectron2` compiles it against the installed torch.
"""

import contextlib
import io
import json
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import torch
from detectron2.config import CfgNode, get_cfg
from detectron2.data import MetadataCatalog
from detectron2.evaluation import COCOEvaluator, PascalVOCDetectionEvaluator
from detectron2.layers import get_norm
from detectron2.modeling import ROI_HEADS_REGISTRY, build_model
from detectron2.modeling.backbone.resnet import BasicBlock, ResNet
from detectron2.modeling.roi_heads import Res5ROIHeads
from detectron2.structures import BitMasks, Boxes, Instances, PolygonMasks
from detectron2.utils.events import EventStorage
from PIL import Image as Picture
from pycocotools import mask as rle
from torch import Tensor, nn
from torchvision.models.resnet import ResNet as Backbone
from torchvision.transforms.functional import pil_to_tensor

from cl.detection import average_precision
from cl.detection.average_precision import COCO_METRICS, Detections, encode_masks
from cl.detection.config import Config
from cl.detection.data import DataSet
from cl.detection.engines._detectron2_settings import settings
from cl.detection.records import Record
from cl.detection.samples import Sample, resized
from cl.networks.detectron2_names import in_detectron2

if TYPE_CHECKING:
    from cl.data.transform import Transform

VOC_METRICS = {"ap50": "AP50", "ap75": "AP75", "ap": "AP"}  # our name, detectron2's name
COCO_COLUMNS = ("AP", "AP50", "AP75", "APs", "APm", "APl")  # detectron2's names of COCO_METRICS

_numbers = count()  # for unique names: the catalog refuses to change an entry


@ROI_HEADS_REGISTRY.register()
class Res5ROIHeadsExtraNorm(Res5ROIHeads):
    """detectron2's C4 head, also for ResNet-18, with an extra norm after res5 as in MoCo."""

    @classmethod
    def _build_res5_block(cls, cfg: CfgNode) -> tuple[nn.Sequential, int]:
        resnets = cfg.MODEL.RESNETS
        if resnets.DEPTH < 50:
            channels = 8 * resnets.RES2_OUT_CHANNELS
            blocks = ResNet.make_stage(
                BasicBlock,
                2,
                stride_per_block=[2, 1],
                in_channels=channels // 2,
                out_channels=channels,
                norm=resnets.NORM,
            )
            res5 = nn.Sequential(*blocks)
        else:
            res5, channels = super()._build_res5_block(cfg)
        res5.add_module("norm", get_norm(resnets.NORM, channels))
        return res5, channels


class Detector(nn.Module):
    """`cl.detection.engines.Detector`; copies the backbone's tensors."""

    def __init__(self, config: Config, backbone: Backbone, dataset: DataSet, transform: "Transform") -> None:
        super().__init__()
        self.config = config
        segmentations = [s for record in dataset.train for s in record.segmentations or []]
        self.polygons = config.masks and all(isinstance(s, list) for s in segmentations)
        self.cfg = get_cfg()
        keys = settings(config, backbone.name, transform, len(dataset.classes), polygons=self.polygons)
        for key, value in keys.items():
            self.cfg.merge_from_list([key, value])
        device, self.cfg.MODEL.DEVICE = self.cfg.MODEL.DEVICE, "cpu"  # build_model puts the network there
        self.network = build_model(self.cfg)
        self.cfg.MODEL.DEVICE = device
        self.origins = load(self.network, backbone)

    @property
    def pretrained(self) -> nn.Module:
        features = self.network.backbone
        return features.bottom_up if self.config.detector == "faster_rcnn_fpn" else features

    @property
    def predictor(self) -> nn.Module:
        return self.network.roi_heads.box_predictor

    def item(self, sample: Sample) -> dict[str, Any]:
        height, width = sample.image.shape[1:]
        instances = Instances((height, width), gt_boxes=Boxes(sample.boxes), gt_classes=sample.labels)
        if self.config.masks:
            instances.gt_masks = (
                PolygonMasks(sample.polygons()) if self.polygons else BitMasks(sample.masks())
            )
        return {"image": sample.image, "instances": instances, "height": height, "width": width}

    def forward(self, items: list[dict[str, Any]]) -> dict[str, Tensor]:
        with EventStorage():  # its heads log to one
            return self.network(items)

    @torch.no_grad()
    def detect(self, picture: Picture.Image) -> Detections:
        image = pil_to_tensor(resized(picture, self.config.test_side, self.config.max_side))
        (output,) = self.network([{"image": image, "height": picture.height, "width": picture.width}])
        instances = output["instances"].to("cpu")
        boxes, scores = instances.pred_boxes.tensor.numpy(), instances.scores.numpy()
        masks = encode_masks(instances.pred_masks.numpy()) if self.config.masks else None
        return Detections(boxes, scores, instances.pred_classes.numpy(), masks)

    def write(self, out: Path) -> None:
        """Write the whole configuration, and which tensors came from the backbone."""
        (out / "detectron2.yaml").write_text(self.cfg.dump())
        (out / "weights.json").write_text(json.dumps(self.origins, indent=1) + "\n")


def load(network: nn.Module, backbone: Backbone) -> dict[str, list[str]]:
    """Copy the backbone's tensors into the detector; returns which tensors were copied and which are new.

    Raises:
        ValueError: a tensor of the backbone lacks a counterpart, or its counterpart has another shape.
    """
    ours = network.state_dict()
    theirs = in_detectron2(backbone.state_dict())
    places = {name: _place(name, ours) for name in theirs}
    for name, value in theirs.items():
        target = ours[places[name]]
        if target.shape != value.shape:
            raise ValueError(
                f"{name} has shape {list(value.shape)} in the backbone, "
                f"but {list(target.shape)} in detectron2's model"
            )
        target.copy_(value)
    new = [name for name in set(ours) - set(places.values()) if "num_batches" not in name]
    return {"from the backbone": sorted(places.values()), "new": sorted(new)}


def _place(name: str, tensors: dict[str, Tensor]) -> str:
    """Where a tensor of the backbone belongs among the detector's tensors."""
    candidates = [f"{prefix}{name}" for prefix in ("backbone.bottom_up.", "backbone.", "roi_heads.")]
    places = [candidate for candidate in candidates if candidate in tensors]
    if len(places) != 1:
        raise ValueError(
            f"{name} of the backbone has {len(places)} counterparts in detectron2's model, "
            f"expected one: {places}"
        )
    return places[0]


def evaluate(
    detections: list[Detections], dataset: DataSet, config: Config
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """As `cl.detection.average_precision.evaluate`, with the metrics of detectron2's evaluators."""
    metrics, by_class = average_precision.evaluate(detections, dataset, config)
    if any(len(detected.scores) for detected in detections):  # its evaluators return nothing otherwise
        with contextlib.redirect_stdout(io.StringIO()):
            results = (_voc if config.kind == "voc" else _coco)(detections, dataset, config)
        metrics = {name: value for name, value in results.items() if not np.isnan(value)}
    return metrics, by_class


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
    """The list and annotations of the test images, by number: the evaluator splits names at spaces."""
    lists, annotations = folder / "ImageSets" / "Main", folder / "Annotations"
    lists.mkdir(parents=True)
    annotations.mkdir()
    (lists / f"{split}.txt").write_text("".join(f"{number}\n" for number in range(len(dataset.test))))
    for number, record in enumerate(dataset.test):
        _annotate(annotations / f"{number}.xml", record)


def _annotate(path: Path, record: Record) -> None:
    """Write every tag that the evaluator reads, even if the data lacks it; boxes count from 1."""
    root = ElementTree.Element("annotation")
    for box, label, difficult in zip(record.boxes, record.labels, record.ignored, strict=True):
        element = ElementTree.SubElement(root, "object")
        tags = {"name": label, "pose": "Unspecified", "truncated": 0, "difficult": int(difficult)}
        _add(element, tags)
        x0, y0, x1, y1 = (round(value) for value in np.add(box, (1, 1, 0, 0)).tolist())
        _add(ElementTree.SubElement(element, "bndbox"), {"xmin": x0, "ymin": y0, "xmax": x1, "ymax": y1})
    ElementTree.ElementTree(root).write(path)


def _add(element: ElementTree.Element, texts: dict[str, Any]) -> None:
    for tag, text in texts.items():
        ElementTree.SubElement(element, tag).text = str(text)


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
        for metric, column in zip(COCO_METRICS, COCO_COLUMNS, strict=True)
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
