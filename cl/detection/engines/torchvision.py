"""Detectors built from torchvision's parts; all layers and all batch norms are trained.

C4, on a ResNet: res1 to res4 feed the proposals, and res5 is the head of each region. As in the papers'
detectron2 models, an extra norm follows res5, and Mask R-CNN's box and mask heads share res5.

FPN: the maps of any backbone feed a pyramid P2 to P6; the head of each region has four convolutions and a
linear layer. Pyramid and head have batch norm (EqCo, appendix B.5), or layer norm on a backbone without it.
"""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image as Picture
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.models.resnet import ResNet
from torchvision.ops import MultiScaleRoIAlign
from torchvision.transforms.functional import pil_to_tensor

from cl.data.transform import Transform
from cl.detection.average_precision import Detections, encode_masks
from cl.detection.config import Config
from cl.detection.engines import _pyramids
from cl.detection.records import DataSet
from cl.detection.samples import Sample, resized_size
from cl.networks.backbones import Backbone
from cl.networks.batch_norm import update_running_stats
from cl.runtime.machine import to_device

RATIOS = (0.5, 1.0, 2.0)
HIDDEN = 1024  # width of the head's linear layer
MASK_HIDDEN = 256


class Res5(nn.Module):
    """res5 of the backbone and the extra norm: (R, C, S, S) to (R, 2C, S / 2, S / 2)."""

    def __init__(self, backbone: ResNet) -> None:
        super().__init__()
        self.res5, self.norm = backbone.layer4, nn.BatchNorm2d(backbone.fc_features)

    def forward(self, regions: Tensor) -> Tensor:
        return self.norm(self.res5(regions))


class MaskHead(nn.Module):
    """The same res5 on the mask regions, normalised by the running statistics of the box regions.

    detectron2 takes the mask features from the pass over the boxes. Here they come from a second pass, over
    positive regions only. Batch statistics of that pass are not used, since a test has no such batch, and do
    not enter the running statistics.
    """

    def __init__(self, res5: Res5) -> None:
        super().__init__()
        self.shared = res5

    def forward(self, regions: Tensor) -> Tensor:
        training = self.shared.training
        update_running_stats(self.shared)  # so that, as with one process, the statistics include this step
        self.shared.eval()
        features = self.shared(regions)
        self.shared.train(training)
        return features


class Detector(nn.Module):
    """`cl.detection.engines.Detector`; takes over the modules of the backbone."""

    def __init__(self, config: Config, backbone: Backbone, dataset: DataSet, transform: Transform) -> None:
        super().__init__()
        self.masks = config.masks
        settings = {
            "num_classes": None,  # given by the predictors
            "rpn_batch_size_per_image": config.rpn_rois,
            "rpn_pre_nms_top_n_train": config.train_proposals[0],
            "rpn_post_nms_top_n_train": config.train_proposals[1],
            "rpn_pre_nms_top_n_test": config.test_proposals[0],
            "rpn_post_nms_top_n_test": config.test_proposals[1],
            "box_batch_size_per_image": config.rois,
        }
        architecture = _fpn if config.detector == "faster_rcnn_fpn" else _c4
        self.network = architecture(config, backbone, len(dataset.classes), settings)
        self.network.transform = _Resized(
            config.test_side, config.max_side, list(transform.mean), list(transform.std)
        )

    @property
    def pretrained(self) -> nn.Module:
        features = self.network.backbone
        body: nn.Module = getattr(features, "body", features)
        return body

    def item(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        target = {"boxes": sample.boxes, "labels": sample.labels + 1}
        if self.masks:
            target["masks"] = sample.masks()
        return sample.image, target

    def forward(self, items: list[tuple[Tensor, dict[str, Tensor]]]) -> dict[str, Tensor]:
        device = next(self.parameters()).device
        images = [to_device(image, device).float().div_(255) for image, _ in items]
        targets = [{name: to_device(value, device) for name, value in target.items()} for _, target in items]
        return self.network(images, targets)

    @torch.no_grad()
    def detect(self, picture: Picture.Image) -> Detections:
        image = to_device(pil_to_tensor(picture), next(self.parameters()).device).float().div_(255)
        output = {name: value.cpu().numpy() for name, value in self.network([image])[0].items()}
        masks = encode_masks(output["masks"][:, 0] > 0.5) if "masks" in output else None
        return Detections(output["boxes"], output["scores"], output["labels"].astype(np.int64) - 1, masks)

    def write(self, out: Path) -> None:
        """Nothing to write: params.yaml holds the whole configuration."""


class _Resized(GeneralizedRCNNTransform):
    """Resizes only test images, antialiased like training images, unlike torchvision's own transform."""

    def resize(
        self, image: Tensor, target: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        if not self.training:
            size = resized_size(image.shape[2], image.shape[1], self.min_size[-1], self.max_size)
            image = F.interpolate(image[None], size[::-1], mode="bilinear", antialias=True)[0]
        return image, target


def _c4(config: Config, b: Backbone, classes: int, settings: dict[str, Any]) -> FasterRCNN:
    assert isinstance(b, ResNet)
    stem = {"conv1": b.conv1, "bn1": b.bn1, "relu": b.relu, "maxpool": b.maxpool}
    body = nn.Sequential(OrderedDict(stem, res2=b.layer1, res3=b.layer2, res4=b.layer3))
    body.out_channels = b.fc_features // 2
    res5 = Res5(b)
    parts = {
        "rpn_anchor_generator": AnchorGenerator((tuple(config.anchors),), (RATIOS,)),
        "box_roi_pool": MultiScaleRoIAlign(["0"], config.pooled, 2),
        "box_head": nn.Sequential(res5, nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        "box_predictor": FastRCNNPredictor(b.fc_features, classes + 1),
    }
    if config.detector == "faster_rcnn_c4":
        return FasterRCNN(body, **parts, **settings)
    return MaskRCNN(
        body,
        mask_roi_pool=MultiScaleRoIAlign(["0"], config.pooled, 2),
        mask_head=MaskHead(res5),
        mask_predictor=MaskRCNNPredictor(b.fc_features, MASK_HIDDEN, classes + 1),
        **parts,
        **settings,
    )


def _fpn(config: Config, backbone: Backbone, classes: int, settings: dict[str, Any]) -> FasterRCNN:
    norm = _pyramids.norm_for(backbone)  # first: the pyramid leaves out layers of the backbone
    anchor_sides = tuple((side,) for side in config.anchors)
    region = (_pyramids.CHANNELS, config.pooled, config.pooled)
    return FasterRCNN(
        _pyramids.build(backbone),
        rpn_anchor_generator=AnchorGenerator(anchor_sides, (RATIOS,) * len(anchor_sides)),
        box_roi_pool=MultiScaleRoIAlign(list(_pyramids.LEVELS), config.pooled, 2),
        box_head=FastRCNNConvFCHead(region, [_pyramids.CHANNELS] * 4, [HIDDEN], norm_layer=norm),
        box_predictor=FastRCNNPredictor(HIDDEN, classes + 1),
        **settings,
    )
