"""The configuration keys that a transfer sets in detectron2.

Its defaults suit Detectron's own models: BGR, no division by the standard deviation, the stride in the first
1x1 convolution, frozen layers and batch norm. With a torchvision backbone, each of them silently ruins the
transfer.
"""

from typing import Any

from cl.data.transform import Transform
from cl.detection.config import Config

C4_HEADS = "Res5ROIHeadsExtraNorm"  # registered by `cl.detection.engines.detectron2`
NORM = "SyncBN"


def settings(config: Config, name: str, transform: Transform, classes: int) -> dict[str, Any]:
    """The keys below `MODEL` to set, by their dotted names, for a backbone such as resnet50.

    Images and steps come from `cl.detection.samples` and `cl.training.loop`, so other keys have no effect.
    """
    common = {
        "MODEL.META_ARCHITECTURE": "GeneralizedRCNN",
        "MODEL.WEIGHTS": "",
        "MODEL.MASK_ON": config.masks,
        "MODEL.PIXEL_MEAN": [255 * value for value in transform.mean],
        "MODEL.PIXEL_STD": [255 * value for value in transform.std],
        "MODEL.BACKBONE.FREEZE_AT": 0,
        "MODEL.RESNETS.DEPTH": int(name.removeprefix("resnet")),
        "MODEL.RESNETS.RES2_OUT_CHANNELS": 64 if name in ("resnet18", "resnet34") else 256,
        "MODEL.RESNETS.NORM": NORM,
        "MODEL.RESNETS.STRIDE_IN_1X1": False,
        "MODEL.RPN.BATCH_SIZE_PER_IMAGE": config.rpn_rois,
        "MODEL.RPN.PRE_NMS_TOPK_TRAIN": config.train_proposals[0],
        "MODEL.RPN.POST_NMS_TOPK_TRAIN": config.train_proposals[1],
        "MODEL.RPN.PRE_NMS_TOPK_TEST": config.test_proposals[0],
        "MODEL.RPN.POST_NMS_TOPK_TEST": config.test_proposals[1],
        "MODEL.ROI_HEADS.NUM_CLASSES": classes,
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": config.rois,
        "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": config.pooled,
        "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": config.pooled,
    }
    if config.detector == "faster_rcnn_fpn":
        return common | _fpn(config)
    return common | {  # res4 feeds the proposals; res5 is the head of each region
        "MODEL.BACKBONE.NAME": "build_resnet_backbone",
        "MODEL.RESNETS.OUT_FEATURES": ["res4"],
        "MODEL.ANCHOR_GENERATOR.SIZES": [list(config.anchors)],
        "MODEL.RPN.IN_FEATURES": ["res4"],
        "MODEL.ROI_HEADS.NAME": C4_HEADS,
        "MODEL.ROI_HEADS.IN_FEATURES": ["res4"],
    }


def _fpn(config: Config) -> dict[str, Any]:
    """A feature pyramid, and a head of four convolutions and a linear layer."""
    stages, levels = ["res2", "res3", "res4", "res5"], ["p2", "p3", "p4", "p5"]
    return {
        "MODEL.BACKBONE.NAME": "build_resnet_fpn_backbone",
        "MODEL.RESNETS.OUT_FEATURES": stages,
        "MODEL.ANCHOR_GENERATOR.SIZES": [[side] for side in config.anchors],
        "MODEL.RPN.IN_FEATURES": [*levels, "p6"],
        "MODEL.ROI_HEADS.NAME": "StandardROIHeads",
        "MODEL.ROI_HEADS.IN_FEATURES": levels,
        "MODEL.FPN.IN_FEATURES": stages,
        "MODEL.FPN.NORM": NORM,
        "MODEL.ROI_BOX_HEAD.NAME": "FastRCNNConvFCHead",
        "MODEL.ROI_BOX_HEAD.NUM_CONV": 4,
        "MODEL.ROI_BOX_HEAD.CONV_DIM": 256,
        "MODEL.ROI_BOX_HEAD.NUM_FC": 1,
        "MODEL.ROI_BOX_HEAD.FC_DIM": 1024,
        "MODEL.ROI_BOX_HEAD.NORM": NORM,
    }
