"""NPID + CLD beside frank-xwang/CLD-UnsupervisedLearning: its bank and k-means, in the order of its script.

Each of the two views updates their bank in turn; ours is updated once, by the views' mean. So each view has a
bank of its own here, which is given our rows before every step.
"""

import copy
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import Experiment
from benchmarks.authors.harness.networks import backbone
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import definitions, without_cuda
from benchmarks.authors.npid import WIDTH, softmax, with_rows

SOURCE = Source("frank-xwang/CLD-UnsupervisedLearning", "0852e5c", "spectral_clustering.py")
CLUSTERS, ITERATIONS, WEIGHT = 3, 5, 1.0


class CLD(Author):
    """Their bank and k-means on torchvision's encoder with two heads, with SGD."""

    def __init__(self, folder: Path, ours: Experiment) -> None:
        without_cuda()
        in_double = SimpleNamespace(zeros=torch.zeros, ones=torch.ones, float=torch.float64)
        (self.k_means,) = definitions(folder / SOURCE.file, "KMeans", torch=in_double)
        memory, self.criterion = softmax(folder, ours.images)
        self.banks = [with_rows(copy.deepcopy(memory), ours.method.bank) for _ in range(2)]
        parts = backbone(), nn.Linear(512, WIDTH), nn.Linear(512, WIDTH)
        self.model = nn.ModuleList(parts).double()
        self.online, self.heads = list(self.model[:2]), [self.model[2]]
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0, momentum=0.9, weight_decay=5e-4)

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        for bank in self.banks:
            bank.memory.copy_(ours.method.bank.rows)
        positions = ours.positions()
        features = [self.model[0](view) for view in views]
        images, groups = ([F.normalize(head(x), dim=1) for x in features] for head in self.model[1:])
        logits = [bank(z, positions) for bank, z in zip(self.banks, images, strict=True)]
        instance = sum(self.criterion(x, positions) for x in logits) / 2
        found = [self.k_means(x, K=CLUSTERS, Niters=ITERATIONS) for x in groups]
        crossed = zip(groups, reversed(found), strict=True)
        between = [F.cross_entropy(x @ centres.T / 0.2, labels) for x, (labels, centres) in crossed]
        return instance + WEIGHT * sum(between) / 2


OURS = (
    *("method=npid_cld_cifar", f"method.projector.out={WIDTH}"),
    *(f"method.group.clusters={CLUSTERS}", f"method.group.weight={WEIGHT}"),
)

COMPARISONS = [Training("npid_cld", SOURCE, CLD, OURS)]
