"""SimCLR's loss in training, beside google-research/simclr, lightly, solo-learn and poodarchu/SelfSup (EqCo).

The encoder is torchvision's, and both views go through it in one pass, as in Google's code. With lightly's on
two processes too, which gathers embeddings. Google and EqCo's authors add both directions, where lightly and
solo-learn take their mean: a factor of 2.
"""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.authors.harness import tensorflow_stand_in
from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import IMAGES, Experiment
from benchmarks.authors.harness.networks import Encoder, mlp
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import definitions, module_from, module_of_file, stub, synchronise
from cl.runtime.distributed import ranks

GOOGLE = Source("google-research/simclr", "383d414", "objective.py")
LIGHTLY = Source("lightly-ai/lightly", "e8d317f", "lightly/loss/ntx_ent_loss.py")
SOLO = Source("vturrisi/solo-learn", "9187ea3", "solo/losses/simclr.py")
SELFSUP = Source(
    "poodarchu/SelfSup",
    "ce09b1f",
    "examples/simclr/simclr.res50.scratch.imagenet.224size.256bs.200e.moco_setting/nt_xent2.py",
)
TEMPERATURE = 0.1


class Siamese(Author):
    """Torchvision's encoder with an author's loss of two views' embeddings, and SGD."""

    def __init__(self, folder: Path, ours: Experiment, criterion: Any) -> None:
        self.criterion = criterion(folder)
        self.model = Encoder(mlp(512, 48, 16)).double()
        if ranks() > 1:
            synchronise([self.model])
        self.online = [self.model]
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0, momentum=0.9, weight_decay=5e-4)

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        return self.criterion(*self.model(torch.cat(views)).chunk(2))


def google(folder: Path) -> Any:
    """Their add_contrastive_loss, with what it takes from TensorFlow."""
    tf = tensorflow_stand_in.for_loss()
    (loss,) = definitions(folder / GOOGLE.file, "add_contrastive_loss", tf=tf, LARGE_NUM=1e9)
    return lambda a, b: loss(torch.cat([a, b]), True, TEMPERATURE)[0]


def lightly(folder: Path) -> Any:
    module = module_from(folder, "lightly.loss")
    return module.NTXentLoss(TEMPERATURE, gather_distributed=ranks() > 1)


def solo(folder: Path) -> Any:
    (loss,) = definitions(
        folder / SOLO.file, "simclr_loss_func", torch=torch, F=F, gather=lambda x: x, get_rank=lambda: 0
    )
    return lambda a, b: loss(torch.cat([a, b]), torch.arange(IMAGES).repeat(2), TEMPERATURE)


def selfsup(folder: Path) -> Any:
    stub("cvpods")
    stub("cvpods.utils", comm=SimpleNamespace(get_world_size=lambda: 1, get_rank=lambda: 0))
    criterion = module_of_file(folder / SELFSUP.file).NT_Xent(IMAGES, TEMPERATURE, "cpu")
    return lambda a, b: sum(criterion(F.normalize(a, dim=1), F.normalize(b, dim=1))[:2])


SIZES = ("method.projector.hidden=[48]", "method.projector.out=16")
MEAN = ("method=simclr", "loss=infonce", *SIZES)
SUM = (*MEAN, "method.scale=2.0")


def training(
    name: str, source: Source, criterion: Any, ours: tuple[str, ...], processes: int = 1
) -> Training:
    return Training(name, source, partial(Siamese, criterion=criterion), ours, processes=processes)


COMPARISONS = [
    training("simclr_google", GOOGLE, google, SUM),
    training("simclr_lightly", LIGHTLY, lightly, MEAN),
    training("simclr_lightly_two_processes", LIGHTLY, lightly, MEAN, processes=2),
    training("simclr_solo_learn", SOLO, solo, MEAN),
    training("simclr_eqco_authors", SELFSUP, selfsup, SUM),
]
