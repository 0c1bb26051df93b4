"""SimSiam with the fixed learning rate of its predictor, beside facebookresearch/simsiam.

On one process, and with synchronised batch norm on two. Our loss is theirs plus 1.
"""

import math
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torchvision.models import resnet18

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import IMAGES, STEPS, Experiment
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import definitions, module_from, synchronise
from cl.runtime.distributed import ranks

SOURCE = Source("facebookresearch/simsiam", "a7bc177", "simsiam/builder.py")
BASE_LR = 0.64


class SimSiam(Author):
    """Their SimSiam and schedule, with the loss and optimizer of their script; one step is an epoch."""

    def __init__(self, folder: Path, ours: Experiment) -> None:
        builder = module_from(folder, "simsiam.builder")
        (self.adjust_lr,) = definitions(folder / "main_simsiam.py", "adjust_learning_rate", math=math)
        self.model = builder.SimSiam(resnet18, dim=64, pred_dim=16).double()
        if ranks() > 1:
            synchronise([self.model])
        self.online, self.heads = [self.model.encoder], [self.model.predictor]
        self.lr = BASE_LR * IMAGES / 256
        groups = [
            {"params": self.model.encoder.parameters(), "fix_lr": False},
            {"params": self.model.predictor.parameters(), "fix_lr": True},
        ]
        self.optimizer = torch.optim.SGD(groups, self.lr, momentum=0.9, weight_decay=5e-4)

    def set_lr(self, ours: Experiment) -> None:
        self.adjust_lr(self.optimizer, self.lr, ours.step, SimpleNamespace(epochs=STEPS))

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        p1, p2, z1, z2 = self.model(*views)
        return 1 - (cosine_similarity(p1, z2).mean() + cosine_similarity(p2, z1).mean()) / 2


OURS = (
    *("method=simsiam_imagenet", "optim.per=epoch", f"optim.base_lr={BASE_LR}", "optim.scaling=linear"),
    *("method.projector.hidden=[512,512]", "method.projector.out=64"),
    *("method.predictor.hidden=[16]", "method.predictor.out=64"),
)

COMPARISONS = [
    Training("simsiam", SOURCE, SimSiam, OURS, steps_per_epoch=1),
    Training("simsiam_two_processes", SOURCE, SimSiam, OURS, processes=2, steps_per_epoch=1),
]
