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
    "DATALOADER.ASPECT_RATIO_GROUPING": False,
    "INPUT.FORMAT": "RGB",
    "INPUT.MAX_SIZE_TRAIN": 1333,
    "INPUT.MIN_SIZE_TEST": 800,
    "INPUT.MAX_SIZE_TEST": 1333,
    "SOLVER.IMS_PER_BATCH": 16,
    "SOLVER.BASE_LR": 0.02,
    "SOLVER.AMP.ENABLED": False,
    "SOLVER.MOMENTUM": 0.9,
    "SOLVER.WEIGHT_DECAY": 0.0001,
    "SOLVER.WEIGHT_DECAY_NORM": 0.0,
    "SOLVER.WARMUP_FACTOR": 0.001,
    "TEST.PRECISE_BN.ENABLED": True,
    "TEST.PRECISE_BN.NUM_ITER": 200,
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
VOC = {
    "DATASETS.TRAIN": ["voc_2007_trainval", "voc_2012_trainval"],
    "DATASETS.TEST": ["voc_2007_test"],
    "MODEL.MASK_ON": False,
    "MODEL.ROI_HEADS.NUM_CLASSES": 20,
    "INPUT.MASK_FORMAT": "bitmask",
    "INPUT.MIN_SIZE_TRAIN": [480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800],
    "SOLVER.STEPS": [18000, 22000],
    "SOLVER.MAX_ITER": 24000,
    "SOLVER.WARMUP_ITERS": 100,
}
COCO = {
    "DATASETS.TRAIN": ["coco_2017_train"],
    "DATASETS.TEST": ["coco_2017_val"],
    "MODEL.ROI_HEADS.NUM_CLASSES": 80,
    "INPUT.MASK_FORMAT": "polygon",
    "INPUT.MIN_SIZE_TRAIN": [640, 672, 704, 736, 768, 800],
    "SOLVER.WARMUP_ITERS": 1000,
}
ONCE = {"MODEL.MASK_ON": True, "SOLVER.STEPS": [60000, 80000], "SOLVER.MAX_ITER": 90000}
TWICE = {"MODEL.MASK_ON": True, "SOLVER.STEPS": [120000, 160000], "SOLVER.MAX_ITER": 180000}
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
    "INPUT.MASK_FORMAT": "bitmask",
    "SOLVER.STEPS": [51304, 80620],
    "SOLVER.MAX_ITER": 87950,
}
TABLE = {
    "voc_c4_24k": COMMON | C4 | VOC,
    "voc_c4_fastmoco": COMMON | C4 | VOC | {"SOLVER.BASE_LR": 0.01},
    "coco_c4_1x": COMMON | C4 | COCO | ONCE,
    "coco_c4_2x": COMMON | C4 | COCO | TWICE,
    "coco_c4_fastmoco": COMMON | C4 | COCO | ONCE | {"SOLVER.BASE_LR": 0.01},
    "coco_fpn": COMMON | COCO | PYRAMID,
}
