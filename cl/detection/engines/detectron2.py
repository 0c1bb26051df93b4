"""detectron2's own models, configured by `settings`.

`make detectron2` compiles it against the installed torch.
"""

import json
from pathlib import Path
from typing import Any

import torch
from detectron2.config import CfgNode, get_cfg
from detectron2.layers import get_norm
from detectron2.modeling import ROI_HEADS_REGISTRY, build_model
from detectron2.modeling.backbone.resnet import BasicBlock, ResNet
from detectron2.modeling.roi_heads import Res5ROIHeads
from detectron2.structures import BitMasks, Boxes, Instances, PolygonMasks
from detectron2.utils.events import EventStorage
from PIL import Image as Picture
from torch import Tensor, nn
from torchvision.models.resnet import ResNet as Backbone
from torchvision.transforms.functional import pil_to_tensor

from cl.data.transform import Transform
from cl.detection.average_precision import Detections, encode_masks
from cl.detection.config import Config
from cl.detection.engines._detectron2_settings import settings
from cl.detection.records import DataSet
from cl.detection.samples import Sample, resized
from cl.networks.backbones.resnet import in_detectron2


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

    def __init__(self, config: Config, backbone: Backbone, dataset: DataSet, transform: Transform) -> None:
        super().__init__()
        self.config = config
        segmentations = [s for record in dataset.train for s in record.segmentations or []]
        self.polygons = config.masks and all(isinstance(s, list) for s in segmentations)
        self.cfg = get_cfg()
        for key, value in settings(config, backbone.name, transform, len(dataset.classes)).items():
            self.cfg.merge_from_list([key, value])
        device, self.cfg.MODEL.DEVICE = self.cfg.MODEL.DEVICE, "cpu"  # build_model puts the network there
        self.network = build_model(self.cfg)
        self.cfg.MODEL.DEVICE = device
        self.origins = load(self.network, backbone)

    @property
    def pretrained(self) -> nn.Module:
        features = self.network.backbone
        return features.bottom_up if self.config.detector == "faster_rcnn_fpn" else features

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
        """Write the configuration of the model, and which tensors came from the backbone."""
        (out / "detectron2.yaml").write_text(CfgNode({"MODEL": self.cfg.MODEL}).dump())
        (out / "weights.json").write_text(json.dumps(self.origins, indent=1) + "\n")


def load(network: nn.Module, backbone: Backbone) -> dict[str, list[str]]:
    """Copy the backbone's tensors into the detector; returns which tensors were copied and which are new."""
    ours, copied = network.state_dict(), []
    for name, value in in_detectron2(backbone.state_dict()).items():
        candidates = [f"{prefix}{name}" for prefix in ("backbone.bottom_up.", "backbone.", "roi_heads.")]
        places = [place for place in candidates if place in ours and ours[place].shape == value.shape]
        if len(places) != 1:
            raise ValueError(
                f"{name} of the backbone {list(value.shape)} has {len(places)} counterparts, expected one"
            )
        ours[places[0]].copy_(value)
        copied += places
    new = [name for name in set(ours) - set(copied) if "num_batches" not in name]
    return {"from the backbone": sorted(copied), "new": sorted(new)}
