"""Invariant Spread beside mangye16/Unsupervised_Embedding_Learning: its loss in training."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import IMAGES, Experiment
from benchmarks.authors.harness.networks import Encoder
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import module_of_file, without_cuda

SOURCE = Source("mangye16/Unsupervised_Embedding_Learning", "29de398", "BatchAverage.py")
WIDTH = 16


class InvariantSpread(Author):
    """Their criterion on torchvision's encoder, both views in one pass, with SGD."""

    def __init__(self, folder: Path, ours: Experiment) -> None:
        without_cuda()
        self.criterion: Any = module_of_file(folder / SOURCE.file).BatchCriterion(1, 0.1, IMAGES)
        self.criterion.diag_mat = self.criterion.diag_mat.double()
        self.model = Encoder(nn.Linear(512, WIDTH)).double()
        self.online = [self.model]
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0, momentum=0.9, weight_decay=5e-4)

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        return self.criterion(F.normalize(self.model(torch.cat(views)), dim=1), None)


OURS = ("method=invariant_spread_cifar", f"method.projector.out={WIDTH}")

COMPARISONS = [Training("invariant_spread", SOURCE, InvariantSpread, OURS)]
