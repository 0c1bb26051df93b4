"""Detectors of torchvision's parts on a ResNet, every layer and every batch norm trained.

C4: res1-4 feed the proposals, res5 is the head of each region. As the papers' detectron2 models: one extra norm after
res5, and (Mask R-CNN) res5 shared by box and mask head.
FPN: res2-5 feed a pyramid P2-P6, four convolutions and a linear layer are the head of each region, with batch norm in
pyramid and head (EqCo, appendix B.5).
"""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image as Picture
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.models.resnet import ResNet
from torchvision.ops import MultiScaleRoIAlign
from torchvision.transforms.functional import pil_to_tensor

from cl.detection.average_precision import Detections, encoded, evaluate
from cl.detection.config import Config
from cl.detection.data import DataSet
from cl.detection.samples import Sample, resized_size
from cl.networks.batch_norm import update_running_stats
from cl.runtime.machine import to_device
from cl.sources import Source

__all__ = ["Detector", "evaluate"]

RATIOS = (0.5, 1.0, 2.0)
PYRAMID, HIDDEN = (
    256,
    1024,
)  # channels of the pyramid and of the convolutions behind it; width of the linear layer


class Res5(nn.Module):
    """res5 of the backbone and the extra norm: (R, C, S, S) to (R, 2C, S / 2, S / 2)."""

    def __init__(self, backbone: ResNet) -> None:
        super().__init__()
        self.res5, self.norm = backbone.layer4, nn.BatchNorm2d(backbone.fc_features)

    def forward(self, regions: Tensor) -> Tensor:
        return self.norm(self.res5(regions))


class MaskHead(nn.Module):
    """The same res5 on the regions of masks, normalised by the running statistics of the boxes' regions.

    detectron2 takes the masks' features from the boxes' pass. Here it is a pass of its own, over positive regions alone:
    their statistics must neither normalise it, as no such batch exists in a test, nor enter the running statistics.
    """

    def __init__(self, res5: Res5) -> None:
        super().__init__()
        self.shared = res5

    def forward(self, regions: Tensor) -> Tensor:
        training = self.shared.training
        update_running_stats(self.shared)  # on several processes, too, the statistics include this step's
        self.shared.eval()
        features = self.shared(regions)
        self.shared.train(training)
        return features


class Detector(nn.Module):
    """`cl.detection.engines.Detector`; takes over the modules of the backbone."""

    def __init__(self, config: Config, backbone: ResNet, dataset: DataSet, source: Source) -> None:
        super().__init__()
        self.masks = config.masks
        settings = {
            "num_classes": None,
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
            config.test_side, config.max_side, list(source.mean), list(source.std)
        )

    @property
    def pretrained(self) -> nn.Module:
        features = self.network.backbone
        return features.body if isinstance(features, BackboneWithFPN) else features

    @property
    def predictor(self) -> nn.Module:
        return self.network.roi_heads.box_predictor

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
        found = {name: value.cpu().numpy() for name, value in self.network([image])[0].items()}
        masks = encoded(found["masks"][:, 0] > 0.5) if "masks" in found else None
        return Detections(found["boxes"], found["scores"], found["labels"].astype(np.int64) - 1, masks)

    def write(self, out: Path) -> None:
        """Nothing: all of it stands in the parameters."""


class _Resized(GeneralizedRCNNTransform):
    """Training images come resized; test images are resized as those, antialiased, which torchvision's own transform is not."""

    def resize(
        self, image: Tensor, target: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        if not self.training:
            size = resized_size(image.shape[2], image.shape[1], self.min_size[-1], self.max_size)
            image = F.interpolate(image[None], size[::-1], mode="bilinear", antialias=True)[0]
        return image, target


def _c4(config: Config, b: ResNet, classes: int, settings: dict) -> FasterRCNN:
    body = nn.Sequential(
        OrderedDict(
            conv1=b.conv1,
            bn1=b.bn1,
            relu=b.relu,
            maxpool=b.maxpool,
            res2=b.layer1,
            res3=b.layer2,
            res4=b.layer3,
        )
    )
    body.out_channels = b.fc_features // 2
    res5 = Res5(b)
    settings |= {
        "rpn_anchor_generator": AnchorGenerator((tuple(config.anchors),), (RATIOS,)),
        "box_roi_pool": MultiScaleRoIAlign(["0"], config.pooled, 2),
        "box_head": nn.Sequential(res5, nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        "box_predictor": FastRCNNPredictor(b.fc_features, classes + 1),
    }
    if config.detector == "faster_rcnn_c4":
        return FasterRCNN(body, **settings)
    return MaskRCNN(
        body,
        mask_roi_pool=MultiScaleRoIAlign(["0"], config.pooled, 2),
        mask_head=MaskHead(res5),
        mask_predictor=MaskRCNNPredictor(b.fc_features, 256, classes + 1),
        **settings,
    )


def _fpn(config: Config, b: ResNet, classes: int, settings: dict) -> FasterRCNN:
    levels = {
        "layer1": "0",
        "layer2": "1",
        "layer3": "2",
        "layer4": "3",
    }  # P2 to P5; P6 is every other pixel of P5
    widths = [b.fc_features // share for share in (8, 4, 2, 1)]
    return FasterRCNN(
        BackboneWithFPN(b, levels, widths, PYRAMID, norm_layer=nn.BatchNorm2d),
        rpn_anchor_generator=AnchorGenerator(
            tuple((side,) for side in config.anchors), (RATIOS,) * len(config.anchors)
        ),
        box_roi_pool=MultiScaleRoIAlign(list(levels.values()), config.pooled, 2),
        box_head=FastRCNNConvFCHead(
            (PYRAMID, config.pooled, config.pooled), [PYRAMID] * 4, [HIDDEN], norm_layer=nn.BatchNorm2d
        ),
        box_predictor=FastRCNNPredictor(HIDDEN, classes + 1),
        **settings,
    )
