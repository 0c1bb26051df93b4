"""detectron2's configuration keys for each of the papers' transfers, and whether it is installed."""

import pytest

try:
    import detectron2  # noqa: F401

    installed = True
except ModuleNotFoundError:
    installed = False
needs_detectron2 = pytest.mark.skipif(
    not installed, reason="detectron2 is not installed: run `make detectron2` to compile it"
)
MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]

COMMON = {
    "MODEL.META_ARCHITECTURE": "GeneralizedRCNN",
    "MODEL.WEIGHTS": "",
    "MODEL.PIXEL_MEAN": MEAN,
    "MODEL.PIXEL_STD": STD,
    "MODEL.BACKBONE.FREEZE_AT": 0,
    "MODEL.RESNETS.DEPTH": 50,
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 256,
    "MODEL.RESNETS.NORM": "SyncBN",
    "MODEL.RESNETS.STRIDE_IN_1X1": False,
    "MODEL.RPN.BATCH_SIZE_PER_IMAGE": 256,
    "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 512,
}
C4 = {
    "MODEL.BACKBONE.NAME": "build_resnet_backbone",
    "MODEL.RESNETS.OUT_FEATURES": ["res4"],
    "MODEL.ANCHOR_GENERATOR.SIZES": [[32, 64, 128, 256, 512]],
    "MODEL.RPN.IN_FEATURES": ["res4"],
    "MODEL.RPN.PRE_NMS_TOPK_TRAIN": 12000,
    "MODEL.RPN.POST_NMS_TOPK_TRAIN": 2000,
    "MODEL.RPN.PRE_NMS_TOPK_TEST": 6000,
    "MODEL.RPN.POST_NMS_TOPK_TEST": 1000,
    "MODEL.ROI_HEADS.NAME": "Res5ROIHeadsExtraNorm",
    "MODEL.ROI_HEADS.IN_FEATURES": ["res4"],
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 14,
    "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": 14,
}
VOC = {"MODEL.MASK_ON": False, "MODEL.ROI_HEADS.NUM_CLASSES": 20}
COCO = {"MODEL.ROI_HEADS.NUM_CLASSES": 80}
MASKS = {"MODEL.MASK_ON": True}
PYRAMID = {
    "MODEL.MASK_ON": False,
    "MODEL.BACKBONE.NAME": "build_resnet_fpn_backbone",
    "MODEL.RESNETS.OUT_FEATURES": ["res2", "res3", "res4", "res5"],
    "MODEL.FPN.IN_FEATURES": ["res2", "res3", "res4", "res5"],
    "MODEL.FPN.NORM": "SyncBN",
    "MODEL.ANCHOR_GENERATOR.SIZES": [[32], [64], [128], [256], [512]],
    "MODEL.RPN.IN_FEATURES": ["p2", "p3", "p4", "p5", "p6"],
    "MODEL.RPN.PRE_NMS_TOPK_TRAIN": 2000,
    "MODEL.RPN.POST_NMS_TOPK_TRAIN": 1000,
    "MODEL.RPN.PRE_NMS_TOPK_TEST": 1000,
    "MODEL.RPN.POST_NMS_TOPK_TEST": 1000,
    "MODEL.ROI_HEADS.NAME": "StandardROIHeads",
    "MODEL.ROI_HEADS.IN_FEATURES": ["p2", "p3", "p4", "p5"],
    "MODEL.ROI_BOX_HEAD.NAME": "FastRCNNConvFCHead",
    "MODEL.ROI_BOX_HEAD.NUM_CONV": 4,
    "MODEL.ROI_BOX_HEAD.CONV_DIM": 256,
    "MODEL.ROI_BOX_HEAD.NUM_FC": 1,
    "MODEL.ROI_BOX_HEAD.FC_DIM": 1024,
    "MODEL.ROI_BOX_HEAD.NORM": "SyncBN",
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 7,
    "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": 7,
}
TABLE = {
    "voc_c4_24k": COMMON | C4 | VOC,
    "voc_c4_fastmoco": COMMON | C4 | VOC,
    "coco_c4_1x": COMMON | C4 | COCO | MASKS,
    "coco_c4_2x": COMMON | C4 | COCO | MASKS,
    "coco_c4_fastmoco": COMMON | C4 | COCO | MASKS,
    "coco_fpn": COMMON | COCO | PYRAMID,
}
# Sides of training images, iterations, milestones, warm-up and rate of each.
VOC_SIDES, COCO_SIDES = [*range(480, 801, 32)], [*range(640, 801, 32)]
SCHEDULES = {
    "voc_c4_24k": (VOC_SIDES, 24000, [18000, 22000], 100, 0.02),
    "voc_c4_fastmoco": (VOC_SIDES, 24000, [18000, 22000], 100, 0.01),
    "coco_c4_1x": (COCO_SIDES, 90000, [60000, 80000], 1000, 0.02),
    "coco_c4_2x": (COCO_SIDES, 180000, [120000, 160000], 1000, 0.02),
    "coco_c4_fastmoco": (COCO_SIDES, 90000, [60000, 80000], 1000, 0.01),
    "coco_fpn": (COCO_SIDES, 87950, [51304, 80620], 1000, 0.02),
}
