"""Parameters of a detection transfer: which data, which detector, which schedule."""

import re
from typing import Literal

from pydantic import Field, model_validator

from cl.runtime.base_config import BaseConfig, Seeds
from cl.training import optim


class Config(BaseConfig):
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
    subset: int | None = Field(
        gt=0, description="for trials: so many training and so many test images; null: all"
    )
    iterations: int = Field(gt=0, description="at the reference batch; of half the batch twice as many")
    milestones: list[int] = Field(
        description="iterations, as these, at which the learning rate falls to a tenth"
    )
    warmup: int = Field(ge=0, description="iterations, as these, linear from `warmup_start`")
    warmup_start: float = Field(ge=0, le=1, description="fraction of the largest rate")
    precise_bn: int = Field(
        ge=0, description="batches that estimate the statistics of batch norm anew before the test"
    )
    precision: Literal["fp32", "bf16"] = Field(
        description="of this transfer, the papers' is fp32; losses stay in float32"
    )
    batch_size: int = Field(gt=0)
    base_lr: float = Field(gt=0, description="at the reference batch, scaled linearly")
    backbone_lr: float = Field(
        gt=0, description="relative rate of the pretrained layers before the proposals: C4 to res4"
    )
    reference_batch: int = Field(gt=0)
    momentum: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0, description="none on norm layers")
    train_sides: list[int] = Field(min_length=1, description="short sides to draw from, pixels")
    test_side: int = Field(gt=0)
    max_side: int = Field(gt=0)
    anchors: list[int] = Field(min_length=1, description="sides, pixels; FPN: one for each of P2 to P6")
    rpn_rois: int = Field(gt=0, description="anchors an image in the proposal loss")
    rois: int = Field(gt=0, description="regions an image in the box loss")
    pooled: int = Field(
        gt=0, description="side of a region's features; 14 in the papers, which res5 halves; FPN: 7"
    )
    train_proposals: tuple[int, int] = Field(
        description="before (FPN: a level) and after non-maximum suppression, an image"
    )
    test_proposals: tuple[int, int]

    @property
    def masks(self) -> bool:
        """Whether objects are outlined, not only boxed."""
        return self.detector == "mask_rcnn_c4"

    def scaled(self, iterations: int) -> int:
        """Iterations at the reference batch as so many of this batch, to see the same number of images."""
        return max(1, round(iterations * self.reference_batch / self.batch_size))

    def solver(self, steps_per_epoch: int) -> optim.Config:
        """The schedule as a training of encoders has it, in epochs."""
        return optim.Config(
            kind="sgd",
            batch_size=self.batch_size,
            epochs=self.scaled(self.iterations) / steps_per_epoch,
            base_lr=self.base_lr,
            reference_batch=self.reference_batch,
            scaling="linear",
            momentum=self.momentum,
            nesterov=False,
            betas=None,
            lars=None,
            weight_decay=self.weight_decay,
            decay_1d=True,
            clip=None,
            warmup_epochs=self.scaled(self.warmup) / steps_per_epoch if self.warmup else 0.0,
            warmup_start=self.warmup_start if self.warmup else 0.0,
            schedule="steps" if self.milestones else "constant",
            per="step",
            final=0.0,
            milestones=[
                self.scaled(milestone) / self.scaled(self.iterations) for milestone in self.milestones
            ],
            gamma=0.1,
        )

    @model_validator(mode="after")
    def _schedule_fits(self) -> "Config":
        if self.milestones != sorted(self.milestones) or not all(
            0 < m < self.iterations for m in self.milestones
        ):
            raise ValueError(
                f"milestones={self.milestones} are iterations, ascending, between 0 and iterations={self.iterations}; "
                "lower them as well"
            )
        marks = [self.scaled(iteration) for iteration in (*self.milestones, self.iterations)]
        if len(set(marks)) < len(marks):
            raise ValueError(
                f"batch_size={self.batch_size} leaves {marks[-1]} iterations, in which milestones={self.milestones} coincide; "
                "choose more iterations or milestones=[]"
            )
        if self.warmup > self.iterations:
            raise ValueError(f"warmup={self.warmup} is more than iterations={self.iterations}; lower it")
        return self

    @model_validator(mode="after")
    def _splits_are_named(self) -> "Config":
        if self.kind == "voc":
            for split in (*self.train, self.test):
                if not re.fullmatch(r"\d+/\w+", split):
                    raise ValueError(
                        f"{split!r} is no split of VOC: expected year and list, such as 2007/trainval"
                    )
        if (
            self.engine == "detectron2"
            and self.kind == "voc"
            and self.test.split("/")[0] not in ("2007", "2012")
        ):
            raise ValueError(
                f"test={self.test}: detectron2 evaluates the years 2007 and 2012; choose engine=torchvision"
            )
        return self

    @model_validator(mode="after")
    def _masks_need_coco(self) -> "Config":
        if self.detector == "mask_rcnn_c4" and self.kind == "voc":
            raise ValueError(
                "detector=mask_rcnn_c4 needs masks, which kind=voc has not; choose detector=faster_rcnn_c4"
            )
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
