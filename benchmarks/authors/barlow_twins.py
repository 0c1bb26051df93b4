"""Barlow Twins beside facebookresearch/barlowtwins: its loss and its LARS with two learning rates.

On two processes, autograd does not see their sum of the correlation over processes: their gradient is half
the true one, and is doubled here before it is compared.
"""

from pathlib import Path
from types import SimpleNamespace

import torch
import torchvision
from torch import Tensor, nn, optim

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import IMAGES, Experiment
from benchmarks.authors.harness.networks import backbone, mlp
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import definitions, synchronise
from cl.runtime.distributed import ranks

SOURCE = Source("facebookresearch/barlowtwins", "8e8d284", "main.py")
ARGS = SimpleNamespace(projector="48-48-16", batch_size=IMAGES, lambd=0.0051)
RATE, BIASES, DECAY = 0.2, 0.024, 0.1


class BarlowTwins(Author):
    """Their BarlowTwins on a ResNet-18, and their LARS."""

    def __init__(self, folder: Path, ours: Experiment) -> None:
        environment = {"torch": torch, "nn": nn, "optim": optim, "torchvision": torchvision}
        names = ("BarlowTwins", "LARS", "off_diagonal")
        builder, lars, _ = definitions(folder / SOURCE.file, *names, **environment)
        self.model = builder(ARGS)
        self.model.backbone, self.model.projector = backbone(), mlp(512, 48, 48, 16, last_bias=False)
        self.model.double()
        if ranks() > 1:
            synchronise([self.model])
        self.online = [self.model.backbone, self.model.projector]
        parameters = list(self.model.parameters())
        groups = [{"params": [p for p in parameters if (p.ndim > 1) == wide]} for wide in (True, False)]
        self.optimizer = lars(
            groups, 0, weight_decay=DECAY, weight_decay_filter=True, lars_adaptation_filter=True
        )

    def set_lr(self, ours: Experiment) -> None:
        for group, factor in zip(self.optimizer.param_groups, (1, BIASES), strict=True):
            group["lr"] = RATE * factor

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        return self.model(*views)

    def clip(self) -> None:
        for p in self.model.parameters():
            p.grad *= ranks()


OURS = (
    *("method=barlow_twins_imagenet", "method.scale=1.0", "optim=lars", f"optim.base_lr={RATE}"),
    *("optim.schedule=constant", f"optim.lr_scale_1d={BIASES}", f"optim.weight_decay={DECAY}"),
    *("method.projector.hidden=[48,48]", "method.projector.out=16"),
)

COMPARISONS = [
    Training("barlow_twins", SOURCE, BarlowTwins, OURS),
    Training("barlow_twins_two_processes", SOURCE, BarlowTwins, OURS, processes=2),
]
