"""NPID (InstDisc) beside zhirongw/lemniscate.pytorch: NCE with samples, and the softmax over all images.

Their samples are ours. Their criterion adds 1e-7 to denominators for single precision; here it adds 0.
"""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import Experiment
from benchmarks.authors.harness.networks import Encoder
from benchmarks.authors.harness.pairing import Pair
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import definitions, module_from, without_cuda
from cl.networks.bank import Bank

SOURCE = Source("zhirongw/lemniscate.pytorch", "f7cfe29", "lib/LinearAverage.py")
WIDTH, SAMPLES = 16, 6


class NPID(Author):
    """Their memory and criterion on torchvision's encoder, with SGD."""

    def __init__(self, folder: Path, ours: Experiment, samples: int | None) -> None:
        without_cuda()
        self.samples = samples
        memory, self.criterion = (sampled if samples else softmax)(folder, ours.images)
        self.bank = with_rows(memory, ours.method.bank)
        self.model = Encoder(nn.Linear(512, WIDTH)).double()
        self.online = [self.model]
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0, momentum=0.9, weight_decay=5e-4)

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        positions = ours.positions()
        self.bank.multinomial = drawing(ours, ours.method.bank, self.samples)
        logits = self.bank(F.normalize(self.model(views[0]), dim=1), positions)
        return self.criterion(logits, positions).sum()

    def queues(self, ours: Experiment) -> Iterator[Pair]:
        yield Pair("bank", self.bank.memory, ours.method.bank.rows)


class Uniform:
    """Replaces their sampler, until ours draws."""

    def __init__(self, weights: Tensor) -> None:
        pass

    def cuda(self) -> None:
        """Stay."""


def sampled(folder: Path, images: int) -> tuple[nn.Module, Any]:
    """Their bank with samples, and NCE."""
    criterion = module_from(folder, "lib.NCECriterion")
    criterion.eps = 0.0
    text = (folder / "lib" / "NCEAverage.py").read_text()
    text = text.replace("gradOutput.data.resize_", "gradOutput.resize_")  # as `data` shared its shape then
    environment = {"torch": torch, "nn": nn, "Function": Function, "math": math, "AliasMethod": Uniform}
    _, average = definitions(text, "NCEFunction", "NCEAverage", **environment)
    memory = average(WIDTH, images, SAMPLES)
    memory.params = torch.tensor([SAMPLES, 0.07, -1, 0.5], dtype=torch.float64)
    return memory, criterion.NCECriterion(images)


def softmax(folder: Path, images: int) -> tuple[nn.Module, Any]:
    """Their bank for all images, and cross-entropy."""
    memory = module_from(folder, "lib.LinearAverage").LinearAverage(WIDTH, images)
    memory.params = torch.tensor([0.1, 0.5], dtype=torch.float64)
    return memory, F.cross_entropy


def with_rows(memory: nn.Module, bank: Bank) -> Any:
    """Their bank in float64 with our rows."""
    memory = memory.double()
    memory.memory.copy_(bank.rows)
    return memory


def drawing(ours: Experiment, bank: Bank, samples: int | None) -> SimpleNamespace:
    """What draws the rows that we draw, after a place for the image's own row."""
    if samples is None:
        return SimpleNamespace()
    positions = ours.positions()
    drawn = bank.sample(positions, samples, ours.method.generator("negatives"), own=True)
    columns = torch.cat([positions[:, None], drawn], 1)
    return SimpleNamespace(draw=lambda count: columns.flatten())


SIZES = (f"method.projector.out={WIDTH}", "bn_group=global", "views.random.count=1")
NCE = ("method=npid_imagenet", f"method.negatives={SAMPLES}", *SIZES)
SOFTMAX = ("method=npid_cifar", *SIZES)

COMPARISONS = [
    Training("npid_nce", SOURCE, partial(NPID, samples=SAMPLES), NCE, (32,)),
    Training("npid_softmax", SOURCE, partial(NPID, samples=None), SOFTMAX, (32,)),
]
