"""SwAV beside facebookresearch/swav: its network, training step and codes; on two processes; with the queue.

Two views of one size: with smaller crops too, the batch norm of their head is over all crops of a step, ours
over those of one size. They normalise the prototypes before a step, we do after it.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import IMAGES, Experiment
from benchmarks.authors.harness.pairing import Pair
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import definitions, module_of_file, synchronise, without_cuda
from cl.runtime.distributed import ranks

SOURCE = Source("facebookresearch/swav", "06b1b7c", "main_swav.py")
WIDTH, PROTOTYPES, QUEUE = 16, 12, 16
ARGS = SimpleNamespace(
    crops_for_assign=[0, 1],
    nmb_crops=[2],
    temperature=0.1,
    epsilon=0.05,
    sinkhorn_iterations=3,
    world_size=1,  # replaced by the number of processes when the model is built
    rank=1,  # which does not log
    use_fp16=False,
    freeze_prototypes_niters=0,
)


class Meter:
    """Keeps the last value, as their AverageMeter does in an epoch of one step."""

    def update(self, value: float, count: int = 1) -> None:
        """Keep a value."""
        self.avg = value


class Passive:
    """Stands in for the optimizer inside their step: the comparison takes its step afterwards."""

    param_groups = ()

    def zero_grad(self) -> None:
        """Do nothing."""

    def step(self) -> None:
        """Do nothing."""


class SwAV(Author):
    """Their ResNet with torchvision's basic blocks, and SGD."""

    def __init__(self, folder: Path, ours: Experiment, queue: bool) -> None:
        without_cuda()
        network = module_of_file(folder / "src" / "resnet50.py").ResNet
        self.model = network(
            BasicBlock,
            [2, 2, 2, 2],
            normalize=True,
            output_dim=WIDTH,
            hidden_mlp=48,
            nmb_prototypes=PROTOTYPES,
        ).double()
        ARGS.world_size = ranks()
        if ranks() > 1:
            synchronise([self.model])
        names = ("train", "distributed_sinkhorn")
        common = {"torch": torch, "nn": nn, "F": F, "np": np, "dist": dist, "args": ARGS}
        time = SimpleNamespace(time=lambda: 0.0)
        self.train, _ = definitions(folder / SOURCE.file, *names, AverageMeter=Meter, time=time, **common)
        self.model.prototypes.weight.data.copy_(ours.method.prototypes.data)
        self.online = [part for name, part in self.model.named_children() if name != "prototypes"]
        self.queue = torch.zeros(2, QUEUE, WIDTH, dtype=torch.float64) if queue else None
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0, momentum=0.9, weight_decay=5e-4)

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        model = Replica(self.model)
        (_, loss), self.queue = self.train([views], model, Passive(), ours.step, [0] * 9, self.queue)
        return torch.tensor(loss, dtype=torch.float64, requires_grad=True)  # it has gone backward itself

    def queues(self, ours: Experiment) -> Iterator[Pair]:
        yield Pair("prototypes", F.normalize(self.model.prototypes.weight, dim=1), ours.method.prototypes)
        if self.queue is not None:
            views = torch.stack(ours.method.queue.rows.chunk(2, 1)).unflatten(1, (-1, IMAGES))
            newest = views.roll(-int(ours.method.queue.oldest) // IMAGES, 1).flip(1).flatten(1, 2)
            filled = min(QUEUE, IMAGES * ours.step)
            yield Pair("queue", self.queue[:, :filled], newest[:, :filled])


class Replica(nn.Module):
    """The model as DistributedDataParallel wraps it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: list[Tensor]) -> tuple[Tensor, Tensor]:
        return self.module(images)


OURS = (
    *("method=swav_imagenet", "method.projector.hidden=[48]", f"method.projector.out={WIDTH}"),
    *(f"method.prototypes={PROTOTYPES}", "method.frozen_epochs=0"),
)
QUEUED = (*OURS, f"method.queue={QUEUE}", "method.queue_epoch=0")

COMPARISONS = [
    Training("swav", SOURCE, partial(SwAV, queue=False), OURS),
    Training("swav_two_processes", SOURCE, partial(SwAV, queue=False), OURS, processes=2),
    Training("swav_queue", SOURCE, partial(SwAV, queue=True), QUEUED),
]
