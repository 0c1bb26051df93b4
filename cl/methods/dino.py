"""DINO: predict a teacher's centred and sharpened code of one view from another."""

from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cl.methods import Setup
from cl.methods._shared.prototypes import PrototypeConfig, PrototypeMethod
from cl.networks.passes import in_passes, l2_normalize
from cl.networks.target import Ema, Target
from cl.objective.batch import Batch
from cl.objective.terms import Contrast
from cl.runtime.base_config import BaseConfig
from cl.runtime.distributed import mean_over_ranks

LOGITS = 2**24  # between targets and prototypes, held at a time


class TeacherTemperature(BaseConfig):
    """Rises linearly from `start` in the first epoch to `end` in the last of `epochs`, then stays."""

    start: float = Field(gt=0)
    end: float = Field(gt=0)
    epochs: int = Field(gt=0)

    def at(self, epoch: Tensor) -> Tensor:
        """Scalar: the temperature in an epoch."""
        return self.start + (self.end - self.start) * (epoch.double() / max(1, self.epochs - 1)).clamp(max=1)


class Config(PrototypeConfig):
    """The teacher is evaluated, not the student.

    centre_momentum: of the centre, a moving average of the teacher's logits.
    """

    evaluated: ClassVar = ("target.0", "target.1")
    kind: Literal["dino"]
    ema: Ema
    teacher_temperature: TeacherTemperature
    centre_momentum: float = Field(ge=0, lt=1)


class Method(PrototypeMethod):
    """Algorithm 1 of DINO: the teacher, a moving average of the student, sees the first two views.

    The prototypes are the last layer's weights as unit rows, whatever their length (its weight norm).

    centre: (K,), of the teacher's logits before the temperature.
    """

    config: Config
    target: Target
    _mean_logits: Tensor

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.target_prototypes = nn.Parameter(self.prototypes.detach().clone(), requires_grad=False)
        self.centre = nn.Buffer(torch.zeros(config.prototypes))

    def forward(self, batch: Batch) -> list[Contrast]:
        """A contrast with all prototypes for every view and every code of another view."""
        targets = in_passes(self.target.embed, batch.views[:2], separate=0)  # 2 x (N, D)
        embeddings = in_passes(self.embed, batch.views, separate=0)  # V x (N, D)
        prototypes = l2_normalize(self.trained_prototypes())  # (K, D)
        with torch.autocast(prototypes.device.type, enabled=False):  # bfloat16 is too coarse for sharpening
            mean = mean_over_ranks(torch.stack(targets).mean((0, 1)))
            self._mean_logits = l2_normalize(self.target_prototypes) @ mean
            means = [self._mean_prototypes(target, prototypes) for target in targets]
        return self.contrasts(embeddings, means, prototypes)

    def after_step(self, progress: float) -> None:
        """Move the centre, and then the teacher, whose logits it averages."""
        self.centre.lerp_(self._mean_logits, 1 - self.config.centre_momentum)
        super().after_step(progress)
        with torch.no_grad():
            self.target_prototypes.lerp_(self.prototypes, 1 - self.config.ema.momentum_at(progress))

    def _mean_prototypes(self, targets: Tensor, prototypes: Tensor) -> Tensor:
        """(N, D): the mean of the student's prototypes under the teacher's code of each target (N, D).

        Computed for a few targets at a time, and again in the backward pass: an (N, K) matrix never exists.
        """
        temperature = self.config.teacher_temperature.at(self.epoch)
        of_teacher = l2_normalize(self.target_prototypes)

        def block(rows: Tensor, prototypes: Tensor) -> Tensor:
            return ((rows @ of_teacher.T - self.centre) / temperature).softmax(1) @ prototypes

        parts = targets.split(max(1, LOGITS // len(prototypes)))
        again = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([again(part, prototypes) for part in parts])
