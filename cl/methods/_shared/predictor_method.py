"""Methods with a predictor on top of the online encoder: BYOL, SimSiam, MoCo v3, NNCLR."""

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from cl.methods import BaseMethod, MethodConfig, Setup
from cl.networks import heads, patches
from cl.networks.passes import in_microbatches, in_passes, l2_normalize
from cl.networks.target import Ema, Target

if TYPE_CHECKING:
    from cl.config import Params


class PredictorMethodConfig(MethodConfig):
    """A method with a predictor, which takes combinatorial patches."""

    has_predictor: ClassVar[bool] = True
    takes_patches: ClassVar[bool] = True
    predictor: heads.Config

    def check(self, params: "Params") -> None:
        """Predictions are compared with projections, so both must have the same width."""
        super().check(params)
        if self.predictor.out != self.projector.out:
            raise ValueError(
                f"method.predictor.out={self.predictor.out} differs from "
                f"method.projector.out={self.projector.out}, but predictions are compared with projections"
            )


class PredictorMethod(BaseMethod):
    """Online predictions of every view against detached target projections of the first two (BYOL, Fig. 2).

    Without a moving average (`ema` None), the online encoder is the target too, as in SimSiam.
    """

    predictor: nn.Module

    def __init__(self, config: PredictorMethodConfig, setup: Setup, ema: Ema | None) -> None:
        super().__init__(config, setup)
        self.patches = setup.patches
        self.predictor = heads.build(config.predictor, config.projector.out)
        self.target = Target(self.backbone, self.projector, ema, self.microbatches) if ema else None

    def predictions_and_targets(self, views: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """V predictions (N, E, D) and two targets (N, D), unit rows; E is 1 without patches."""
        if self.target is None and isinstance(self.patches, patches.Whole):
            both = self._encode(self._predict_and_project, views)
            return [x[:, :1] for x in both], [x[:, 1].detach() for x in both[:2]]
        predictions = self._encode(self._predict, views)
        if self.target:
            return predictions, [self.target.embed(view) for view in views[:2]]
        with torch.no_grad():  # projections of patches are not targets: another pass (Fast-MoCo, C.1)
            return predictions, [self.embed(view) for view in views[:2]]

    def _encode(self, encode, views: list[Tensor]) -> list[Tensor]:  # type: ignore[no-untyped-def]
        return in_passes(lambda images: in_microbatches(encode, images, self.microbatches), views, separate=2)

    def _predict(self, images: Tensor) -> Tensor:
        """(N, E, D)."""
        networks = (self.backbone, self.projector, self.predictor)
        return l2_normalize(patches.encode(self.patches, images, *networks, self.generator("patches")))

    def _predict_and_project(self, images: Tensor) -> Tensor:
        """(N, 2, D): the prediction and the projection of each image."""
        projections = self.projector(self.backbone(images))
        return l2_normalize(torch.stack([self.predictor(projections), projections], 1))

    def after_step(self, progress: float) -> None:
        """Move the target encoder; in the first step it equals the online encoder."""
        if self.target:
            self.target.ema_update(self.backbone, self.projector, progress)
