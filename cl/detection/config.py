"""Parameters of a detection transfer: the data, the detector and the schedule."""

import re
from typing import Literal

from pydantic import Field, model_validator

from cl.runtime.base_config import BaseConfig, Seeds
from cl.runtime.metric_info import MetricInfo
from cl.training import optim

OVERLAPS = {  # in the order of pycocotools
    "ap": ("AP", "mean over overlaps from 0.5 to 0.95"),
    "ap50": ("AP50", "boxes or masks must overlap their object by 0.5"),
    "ap75": ("AP75", "boxes or masks must overlap their object by 0.75"),
    "ap_s": ("AP, small", "of small objects, mean over overlaps"),
    "ap_m": ("AP, medium", "of medium objects, mean over overlaps"),
    "ap_l": ("AP, large", "of large objects, mean over overlaps"),
}


class Config(BaseConfig):
    """One transfer protocol; `pipeline/conf/transfer/` has detectron2's C4 protocols and EqCo's FPN.

    detector: C4 takes a residual network apart; FPN takes any backbone, a plain transformer with the simple
        feature pyramid of ViTDet.
    seeds: trains once per seed and reports mean and standard deviation; null: once, with the run's seed.
    """

    kind: Literal["voc", "coco"] = Field(description="layout of the data, and metric")
    detector: Literal["faster_rcnn_c4", "mask_rcnn_c4", "faster_rcnn_fpn"]
    engine: Literal["torchvision", "detectron2"]
    data: Literal["scenes", "raw"] = Field(description="embedded scenes, or VOCdevkit and coco below CL_RAW")
    train: list[str] = Field(min_length=1, description="2007/trainval for VOC, train2017 for COCO")
    test: str
    seeds: Seeds | None
    subset: int | None = Field(gt=0, description="trial run on this many training and test images; null: all")
    iterations: int = Field(gt=0, description="at the reference batch; twice as many at half that batch")
    milestones: list[int] = Field(description="iterations, likewise, where the rate drops to a tenth")
    warmup: int = Field(ge=0, description="iterations, likewise, of linear warm-up from `warmup_start`")
    warmup_start: float = Field(ge=0, le=1, description="fraction of the peak learning rate")
    precise_bn: int = Field(ge=0, description="batches that re-estimate batch-norm statistics for the test")
    precision: Literal["fp32", "bf16"] = Field(description="fp32 in the papers; losses stay in float32")
    batch_size: int = Field(gt=0)
    base_lr: float = Field(gt=0, description="at the reference batch, scaled linearly")
    backbone_lr: float = Field(gt=0, description="relative rate of the layers that feed the proposals")
    reference_batch: int = Field(gt=0)
    momentum: float = Field(ge=0, lt=1)
    betas: tuple[float, float] | None = Field(description="of AdamW; null for SGD, as in the papers")
    weight_decay: float = Field(ge=0, description="not applied to norm layers")
    train_sides: list[int] = Field(min_length=1, description="short sides to choose from at random, pixels")
    test_side: int = Field(gt=0)
    max_side: int = Field(gt=0)
    anchors: list[int] = Field(min_length=1, description="sides, pixels; FPN: one each for P2 to P6")
    rpn_rois: int = Field(gt=0, description="anchors per image in the proposal loss")
    rois: int = Field(gt=0, description="regions per image in the box loss")
    pooled: int = Field(gt=0, description="side of a region: 14 in the papers, halved by res5; FPN: 7")
    train_proposals: tuple[int, int] = Field(
        description="per image, before (FPN: per level) and after non-maximum suppression"
    )
    test_proposals: tuple[int, int]

    @property
    def masks(self) -> bool:
        """Whether the detector predicts masks as well as boxes."""
        return self.detector == "mask_rcnn_c4"

    @property
    def title(self) -> str:
        """What it is called in reports, in words."""
        detector, _, features = self.detector.rpartition("_rcnn_")
        data = "Detection on embedded scenes" if self.data == "scenes" else f"{self.kind.upper()} detection"
        return f"{data}, {detector.capitalize()} R-CNN {features.upper()}"

    @property
    def about(self) -> str:
        """What the transfer measures, for the report."""
        layout = f"{self.kind.upper()}'s"
        data = f"embedded scenes in {layout} layout" if self.data == "scenes" else f"{layout} {self.test}"
        return f"All layers are fine-tuned, and tested on {data}."

    def numbers(self) -> dict[str, MetricInfo]:
        """What each metric means."""
        voc = self.kind == "voc"
        shapes = ("",) if voc else ("box_", "mask_")[: 1 + self.masks]
        return {
            f"{shape}{name}": MetricInfo(
                f"{shape.replace('_', ' ')}{title}", f"average precision; {meaning}", "higher"
            )
            for shape in shapes
            for name, (title, meaning) in OVERLAPS.items()
            if not voc or name in ("ap", "ap50", "ap75")
        }

    def scaled(self, iterations: int) -> int:
        """Iterations at the reference batch, converted to this batch size: the same number of images."""
        return max(1, round(iterations * self.reference_batch / self.batch_size))

    def solver(self, steps_per_epoch: int) -> optim.Config:
        """The schedule in epochs, as the training loop takes it."""
        steps = self.scaled(self.iterations)
        return optim.Config(
            kind="adamw" if self.betas else "sgd",
            batch_size=self.batch_size,
            epochs=steps / steps_per_epoch,
            base_lr=self.base_lr,
            reference_batch=self.reference_batch,
            scaling="linear",
            momentum=self.momentum,
            nesterov=False,
            betas=self.betas,
            weight_decay=self.weight_decay,
            warmup_epochs=self.scaled(self.warmup) / steps_per_epoch if self.warmup else 0.0,
            warmup_start=self.warmup_start,
            schedule="steps" if self.milestones else "constant",
            milestones=[self.scaled(milestone) / steps for milestone in self.milestones],
            gamma=0.1,
        )

    @model_validator(mode="after")
    def _solver_fits(self) -> "Config":
        inside = all(0 < milestone < self.iterations for milestone in self.milestones)
        if self.milestones != sorted(self.milestones) or not inside:
            raise ValueError(
                f"milestones={self.milestones} must be ascending and below iterations={self.iterations}"
            )
        if self.betas and self.momentum:
            raise ValueError(
                f"momentum={self.momentum} is for SGD, betas={list(self.betas)} for AdamW; choose momentum=0"
            )
        return self

    @model_validator(mode="after")
    def _data_and_detector_fit(self) -> "Config":
        for split in (*self.train, self.test):
            if self.kind == "voc" and not re.fullmatch(r"\d+/\w+", split):
                raise ValueError(f"{split!r} is not VOC's: expected <year>/<list>, such as 2007/trainval")
        if self.masks and self.kind == "voc":
            raise ValueError("detector=mask_rcnn_c4 needs masks, which kind=voc lacks; choose faster_rcnn_c4")
        fpn = self.detector == "faster_rcnn_fpn"
        if fpn and (self.pooled != 7 or len(self.anchors) != 5):
            raise ValueError(
                "detector=faster_rcnn_fpn requires pooled=7 and five anchors, one each for P2 to P6; "
                f"found pooled={self.pooled} and anchors={self.anchors}"
            )
        return self
