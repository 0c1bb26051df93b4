"""MoCo v1 and v2, with ShuffleBN on two processes, beside facebookresearch/moco.

Their key encoder moves at the start of the next forward pass, ours after the step: a copy of theirs is moved.
"""

import copy
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import resnet18

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import Experiment
from benchmarks.authors.harness.pairing import Pair
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import module_from, permutations, without_cuda

SOURCE = Source("facebookresearch/moco", "132aea9", "moco/builder.py")
WIDTH, QUEUE = 16, 24


class MoCo(Author):
    """Their MoCo with their defaults and SGD; `version` as in their README."""

    def __init__(self, folder: Path, ours: Experiment, version: int) -> None:
        without_cuda()
        builder = module_from(folder, "moco.builder")
        options = {1: {"T": 0.07, "mlp": False}, 2: {"T": 0.2, "mlp": True}}[version]
        self.follow(builder.MoCo(resnet18, dim=WIDTH, K=QUEUE, m=0.999, **options), ours)

    def follow(self, model: Any, ours: Experiment) -> None:
        """Train this model, with our queue."""
        self.model = model.double().train()
        self.online, self.target = [self.model.encoder_q], [self.model.encoder_k]
        self.model.queue.copy_(ours.method.queue.rows.T)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, 0, momentum=0.9, weight_decay=5e-4)

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        order = ours.method.shuffled(len(views[1]), "keys 1")
        with permutations(torch.arange(len(views[1])) if order is None else order):
            logits, labels = self.model(*views)
        return nn.functional.cross_entropy(logits, labels)

    def moved_target(self, ours: Experiment) -> list[nn.Module]:
        moved = copy.deepcopy(self.model)
        moved._momentum_update_key_encoder()
        return [moved.encoder_k]

    def queues(self, ours: Experiment) -> Iterator[Pair]:
        yield Pair("queue", self.model.queue.T, ours.method.queue.rows)
        yield Pair("pointer", self.model.queue_ptr[0], ours.method.queue.oldest)


SIZES = (f"method.projector.out={WIDTH}", f"method.queue={QUEUE}")
V1 = ("method=moco_v1_imagenet", "loss=infonce", *SIZES)
V2 = ("method=moco_v2_imagenet", "loss=infonce", "method.projector.hidden=[512]", *SIZES)
TOGETHER = ("method.shuffle=false", "bn_group=global")

COMPARISONS = [
    Training("moco_v1", SOURCE, partial(MoCo, version=1), (*V1, *TOGETHER)),
    Training("moco_v2", SOURCE, partial(MoCo, version=2), (*V2, *TOGETHER)),
    Training(
        "moco_v2_two_processes",
        SOURCE,
        partial(MoCo, version=2),
        (*V2, "bn_group=4"),
        sizes=(64, 64),
        processes=2,
    ),
]
