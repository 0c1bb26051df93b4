"""detectron2's own models and evaluators, configured as `settings` says.

Compiled against the torch that is installed: `make detectron2`.
"""

import contextlib
import io
import json
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
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
from cl.detection.average_precision import COCO_METRICS, Detections, encoded
from cl.detection.config import Config
from cl.detection.data import DataSet
from cl.detection.engines._detectron2_settings import names, settings
from cl.detection.records import Record
from cl.detection.samples import Sample, resized
from cl.sources import Source

_numbers = count()


@ROI_HEADS_REGISTRY.register()
class Res5ROIHeadsExtraNorm(Res5ROIHeads):
    """detectron2's C4 head, of ResNet-18 too, with one more norm after res5: batch norm of backbones is trained (MoCo)."""

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
    """`cl.detection.engines.Detector`; copies the tensors of the backbone."""

    def __init__(self, config: Config, backbone: Backbone, dataset: DataSet, source: Source) -> None:
        super().__init__()
        self.config = config
        shapes = [s for record in dataset.train for s in record.segmentations or []]
        self.polygons = config.masks and all(isinstance(shape, list) for shape in shapes)
        self.cfg = get_cfg()
        kind = "resnet18" if backbone.fc_features == 512 else "resnet50"
        for key, value in settings(
            config, kind, source, len(dataset.classes), polygons=self.polygons
        ).items():
            self.cfg.merge_from_list([key, value])
        usual, self.cfg.MODEL.DEVICE = self.cfg.MODEL.DEVICE, "cpu"  # where it is built
        self.network = build_model(self.cfg)
        self.cfg.MODEL.DEVICE = usual
        self.account = load(self.network, backbone)

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
        with EventStorage():  # its heads want to note something
            return self.network(items)

    @torch.no_grad()
    def detect(self, picture: Picture.Image) -> Detections:
        image = pil_to_tensor(resized(picture, self.config.test_side, self.config.max_side))
        (output,) = self.network([{"image": image, "height": picture.height, "width": picture.width}])
        found = output["instances"].to("cpu")
        masks = encoded(found.pred_masks.numpy()) if self.config.masks else None
        return Detections(
            found.pred_boxes.tensor.numpy(), found.scores.numpy(), found.pred_classes.numpy(), masks
        )

    def write(self, out: Path) -> None:
        """The whole configuration, and which tensors came from the backbone."""
        (out / "detectron2.yaml").write_text(self.cfg.dump())
        (out / "weights.json").write_text(json.dumps(self.account, indent=1) + "\n")


def load(network: nn.Module, backbone: Backbone) -> dict[str, list[str]]:
    """Copy the backbone's tensors to where they belong; which were copied, and which tensors of the detector are new.

    Raises:
        ValueError: a tensor of the backbone has no place, or one of another shape.
    """
    own = network.state_dict()
    places = {}
    for name in names(backbone.state_dict()):
        found = [
            f"{prefix}{name}"
            for prefix in ("backbone.bottom_up.", "backbone.", "roi_heads.")
            if f"{prefix}{name}" in own
        ]
        if len(found) != 1:
            raise ValueError(
                f"{name} of the backbone has {len(found)} places in detectron2's model, expected one: {found}"
            )
        places[name] = found[0]
    for name, value in names(backbone.state_dict()).items():
        if own[places[name]].shape != value.shape:
            shapes = f"{list(value.shape)}, in detectron2's model {list(own[places[name]].shape)}"
            raise ValueError(f"{name} of the backbone is {shapes}")
        own[places[name]].copy_(value)
    new = set(own) - set(places.values())
    return {
        "from the backbone": sorted(places.values()),
        "new": sorted(name for name in new if "num_batches" not in name),
    }


def evaluate(
    found: list[Detections], dataset: DataSet, config: Config
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """As `cl.detection.average_precision.evaluate`, the metrics by detectron2's evaluators."""
    metrics, by_class = average_precision.evaluate(found, dataset, config)
    if any(len(detections.scores) for detections in found):  # without any its evaluators give nothing
        with contextlib.redirect_stdout(io.StringIO()):
            theirs = (_voc if config.kind == "voc" else _coco)(found, dataset, config)
        metrics = {name: value for name, value in theirs.items() if not np.isnan(value)}
    return metrics, by_class


def _voc(found: list[Detections], dataset: DataSet, config: Config) -> dict[str, float]:
    """Of the classes that have objects, as a mean over others would count them as zero.

    Its evaluator rounds boxes to a tenth of a pixel and scores to three decimals.
    """
    year, split = config.test.split("/")
    present = np.unique(np.concatenate([record.labels[~record.ignored] for record in dataset.test]))
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ImageSets" / "Main").mkdir(parents=True)
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text(
            "".join(f"{r.path.stem}\n" for r in dataset.test)
        )
        (folder / "Annotations").mkdir()
        for record in dataset.test:
            _annotate(folder / "Annotations" / f"{record.path.stem}.xml", record, dataset.classes)
        data = f"cl_{next(_numbers)}"
        classes = [dataset.classes[label] for label in present]
        MetadataCatalog.get(data).set(dirname=name, split=split, year=int(year), thing_classes=classes)
        evaluator = PascalVOCDetectionEvaluator(data)
        evaluator.reset()
        for detections, record in zip(found, dataset.test, strict=True):
            known = np.isin(detections.labels, present)
            labels = np.searchsorted(present, detections.labels[known])
            kept = _instances(Detections(detections.boxes[known], detections.scores[known], labels), record)
            evaluator.process([{"image_id": record.path.stem}], [{"instances": kept}])
        results = evaluator.evaluate()["bbox"]
    return {
        ours: float(results[theirs]) for ours, theirs in (("ap50", "AP50"), ("ap75", "AP75"), ("ap", "AP"))
    }


def _annotate(path: Path, record: Record, classes: list[str]) -> None:
    """All that its evaluator reads, which own data need not have; boxes are whole numbers, counted from 1."""
    root = ElementTree.Element("annotation")
    for box, label, difficult in zip(record.boxes, record.labels, record.ignored, strict=True):
        element = ElementTree.SubElement(root, "object")
        words = {
            "name": classes[label],
            "pose": "Unspecified",
            "truncated": "0",
            "difficult": str(int(difficult)),
        }
        for tag, word in words.items():
            ElementTree.SubElement(element, tag).text = word
        corners = ElementTree.SubElement(element, "bndbox")
        for tag, value in zip(
            ("xmin", "ymin", "xmax", "ymax"), np.add(box, (1, 1, 0, 0)).tolist(), strict=True
        ):
            ElementTree.SubElement(corners, tag).text = str(round(value))
    ElementTree.ElementTree(root).write(path)


def _coco(found: list[Detections], dataset: DataSet, config: Config) -> dict[str, float]:
    assert dataset.categories is not None
    data = f"cl_{next(_numbers)}"
    numbers = {category: label for label, category in enumerate(dataset.categories)}
    MetadataCatalog.get(data).set(
        json_file=str(dataset.annotations),
        thing_classes=dataset.classes,
        thing_dataset_id_to_contiguous_id=numbers,
    )
    kinds = {"bbox": "box", "segm": "mask"} if config.masks else {"bbox": "box"}
    evaluator = COCOEvaluator(data, tasks=tuple(kinds), distributed=False)
    evaluator.reset()
    for detections, record in zip(found, dataset.test, strict=True):
        evaluator.process([{"image_id": record.identity}], [{"instances": _instances(detections, record)}])
    results = evaluator.evaluate(img_ids=[record.identity for record in dataset.test])
    columns = ("AP", "AP50", "AP75", "APs", "APm", "APl")
    return {
        f"{ours}_{metric}": float(results[theirs][column])
        for theirs, ours in kinds.items()
        for metric, column in zip(COCO_METRICS, columns, strict=True)
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
