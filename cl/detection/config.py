"""Parameters of a detection transfer: which data, which detector, which schedule."""

from typing import Literal

from pydantic import Field, model_validator

from cl.strict import Seeds, Strict


class Config(Strict):
    """One transfer protocol; detectron2's C4 protocols and EqCo's FPN in `pipeline/conf/transfer/`.

    seeds: the training is repeated with each, for mean and standard deviation; null: once, with the run's seed.
    """

    kind: Literal["voc", "coco"] = Field(description="layout of the data and metric")
    detector: Literal["faster_rcnn_c4", "mask_rcnn_c4", "faster_rcnn_fpn"]
    engine: Literal["torchvision", "detectron2"]
    data: Literal["scenes", "raw"] = Field(description="embedded scenes, or VOCdevkit and coco below CL_RAW")
    train: list[str] = Field(min_length=1, description="2007/trainval for VOC, train2017 for COCO")
    test: str
    seeds: Seeds | None
    iterations: int = Field(gt=0)
    milestones: list[int] = Field(description="iterations at which the learning rate falls to a tenth")
    warmup: int = Field(ge=0, description="iterations")
    batch_size: int = Field(gt=0)
    base_lr: float = Field(gt=0, description="at the reference batch, scaled linearly")
    backbone_lr: float = Field(gt=0, description="relative rate of the pretrained layers before the proposals: C4 to res4")
    reference_batch: int = Field(gt=0)
    momentum: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0, description="none on norm layers")
    train_sides: list[int] = Field(min_length=1, description="short sides to draw from, pixels")
    test_side: int = Field(gt=0)
    max_side: int = Field(gt=0)
    anchors: list[int] = Field(min_length=1, description="sides, pixels; FPN: one for each of P2 to P6")
    rpn_rois: int = Field(gt=0, description="anchors an image in the proposal loss")
    rois: int = Field(gt=0, description="regions an image in the box loss")
    pooled: int = Field(gt=0, description="side of a region's features; 14 in the papers, which res5 halves; FPN: 7")
    train_proposals: tuple[int, int] = Field(description="before (FPN: a level) and after non-maximum suppression, an image")
    test_proposals: tuple[int, int]

    @model_validator(mode="after")
    def _masks_need_coco(self) -> "Config":
        if self.detector == "mask_rcnn_c4" and self.kind == "voc":
            raise ValueError("detector=mask_rcnn_c4 needs masks, which kind=voc has not; choose detector=faster_rcnn_c4")
        return self

    @model_validator(mode="after")
    def _fits_the_detector(self) -> "Config":
        fpn = self.detector == "faster_rcnn_fpn"
        if not fpn and self.pooled % 2:
            raise ValueError(f"pooled={self.pooled} is odd, but res5 halves it; choose 14 as the papers")
        if fpn and (self.pooled != 7 or len(self.anchors) != 5):
            raise ValueError(
                "detector=faster_rcnn_fpn takes pooled=7 and five anchors, one for each of P2 to P6; "
                f"found pooled={self.pooled} and anchors={self.anchors}"
            )
        return self
