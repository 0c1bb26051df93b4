"""Methods with a predictor on top of the online encoder: BYOL, SimSiam, MoCo v3, NNCLR."""

from typing import ClassVar, Self

import torch
from pydantic import model_validator
from torch import Tensor

from cl.methods import BaseMethod, MethodConfig, Setup, pairs
from cl.networks import heads, patches
from cl.networks.passes import in_passes, l2_normalize
from cl.objective.terms import Agreement


class PredictorMethodConfig(MethodConfig):
    """A method with a predictor; it can encode combinatorial patches. With `ema`, it has a target encoder."""

    gives: ClassVar = {"predictor", "patches"}
    predictor: heads.Config

    @model_validator(mode="after")
    def _equally_wide(self) -> Self:
        if self.predictor.out != self.projector.out:
            raise ValueError(
                f"predictor.out={self.predictor.out} differs from projector.out={self.projector.out}, but "
                "predictions are compared with projections; choose the same"
            )
        return self


class PredictorMethod(BaseMethod):
    """Online predictions of every view against detached target projections of the first two (BYOL, Fig. 2).

    If the config has no `ema`, or null, the online encoder is also the target, as in SimSiam.
    """

    def __init__(self, config: PredictorMethodConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.patches = setup.patches
        self.predictor = heads.build(config.predictor, config.projector.out)

    def predictions_and_targets(self, views: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """V predictions (N, E, D) and two targets (N, D), unit rows; E is 1 without patches."""
        if self.target is None and isinstance(self.patches, patches.Whole):
            both = in_passes(self._predict_and_project, views, separate=2)
            return [x[:, :1] for x in both], [x[:, 1].detach() for x in both[:2]]
        if self.target:
            targets = [self.target.embed(view) for view in views[:2]]
            return in_passes(self._predict, views, separate=2), targets
        predictions = in_passes(self._predict, views, separate=2)
        with torch.no_grad():  # projections of patches are not targets: another pass (Fast-MoCo, C.1)
            return predictions, [self.embed(view) for view in views[:2]]

    def _predict(self, images: Tensor) -> Tensor:
        """(N, E, D)."""
        networks = (self.backbone, self.projector, self.predictor)
        return l2_normalize(patches.encode(self.patches, images, *networks, self.generator("patches")))

    def _predict_and_project(self, images: Tensor) -> Tensor:
        """(N, 2, D): the prediction and the projection of each image."""
        projections = self.projector(self.backbone(images))
        return l2_normalize(torch.stack([self.predictor(projections), projections], 1))

    def agreements(self, views: list[Tensor]) -> list[Agreement]:
        """For each of the `pairs`, E predictions per image with the image's target."""
        predictions, targets = self.predictions_and_targets(views)
        repeated = [target.repeat_interleave(predictions[0].shape[1], 0)[:, None] for target in targets]
        return [Agreement(predictions[a].flatten(0, 1), repeated[b]) for a, b in pairs(len(views))]
