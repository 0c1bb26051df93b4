"""MoCo v3 on a ResNet, beside facebookresearch/moco-v3, with LARS and both schedules.

Two temperatures, and synchronised batch norm on two processes. Their momentum encoder moves at the start of
the next forward pass, with the momentum of that step.
"""

import copy
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from torch import Tensor, nn
from torchvision.models import resnet18

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import IMAGES, STEPS, Experiment
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import definitions, module_from, synchronise, without_cuda
from cl.runtime.distributed import ranks

SOURCE = Source("facebookresearch/moco-v3", "c349e6e", "moco/builder.py")
ARGS = SimpleNamespace(lr=0.6 * IMAGES / 256, warmup_epochs=2, epochs=STEPS, moco_m=0.99)


class MoCoV3(Author):
    """Their MoCo_ResNet, LARS and schedules; one step is an epoch."""

    def __init__(self, folder: Path, ours: Experiment, temperature: float) -> None:
        without_cuda()
        builder, optimizer = (module_from(folder, f"moco.{name}") for name in ("builder", "optimizer"))
        self.adjust_lr, self.momentum = definitions(
            folder / "main_moco.py", "adjust_learning_rate", "adjust_moco_momentum", math=math
        )
        self.model = builder.MoCo_ResNet(resnet18, dim=16, mlp_dim=48, T=temperature).double()
        if ranks() > 1:
            synchronise([self.model])
        self.online, self.heads = [self.model.base_encoder], [self.model.predictor]
        self.target = [self.model.momentum_encoder]
        self.optimizer = optimizer.LARS(self.model.parameters(), 0, weight_decay=0.1, momentum=0.9)

    def set_lr(self, ours: Experiment) -> None:
        self.adjust_lr(self.optimizer, ours.step, ARGS)

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        return self.model(*views, self.momentum(ours.step, ARGS))

    def moved_target(self, ours: Experiment) -> list[nn.Module]:
        moved = copy.deepcopy(self.model)
        moved._update_momentum_encoder(self.momentum(ours.step, ARGS))
        return [moved.momentum_encoder]


OURS = (
    *("method=moco_v3_imagenet", "loss=infonce", "optim=lars"),
    *("optim.base_lr=0.6", "optim.scaling=linear", "optim.warmup_epochs=2", "optim.weight_decay=0.1"),
    *("method.projector.hidden=[48]", "method.projector.out=16"),
    *("method.predictor.hidden=[48]", "method.predictor.out=16"),
)
COOL = (*OURS, "temperature=0.2", "method.scale=0.8")

COMPARISONS = [
    Training("moco_v3", SOURCE, partial(MoCoV3, temperature=1.0), OURS, steps_per_epoch=1),
    Training("moco_v3_temperature", SOURCE, partial(MoCoV3, temperature=0.2), COOL, steps_per_epoch=1),
    Training(
        "moco_v3_two_processes",
        SOURCE,
        partial(MoCoV3, temperature=1.0),
        OURS,
        processes=2,
        steps_per_epoch=1,
    ),
]
