"""Local Aggregation beside neuroailab/LocalAggregation-Pytorch: its loss and memory, with our clusterings.

They cluster with faiss, whose random initial centres differ from ours. One step is an epoch: each begins
with new clusterings. Their probability of image i is divided by the sums of all images of the batch, which
changes the gradient where an image is without close neighbours: here it is divided by its own. Our loss is
less by log(1 + 1e-7), so losses differ by 5e-8 and gradients do not.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import Experiment
from benchmarks.authors.harness.networks import Encoder
from benchmarks.authors.harness.pairing import Pair
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import definitions, module_of_file

SOURCE = Source("neuroailab/LocalAggregation-Pytorch", "b085877", "src/objectives/localagg.py")
WIDTH, NEIGHBOURS = 16, 8


class LocalAggregation(Author):
    """Their loss on torchvision's encoder, with SGD."""

    def __init__(self, folder: Path, ours: Experiment) -> None:
        tensor = module_of_file(folder / "src" / "utils" / "tensor.py")
        helpers = {"repeat_1d_tensor": tensor.repeat_1d_tensor, "l2_normalize": tensor.l2_normalize}
        text = (folder / SOURCE.file).read_text().replace("dim=1, keepdim=True)", "dim=1)", 1)
        (self.criterion,) = definitions(text, "LocalAggregationLossModule", torch=torch, **helpers)
        self.bank = ours.method.bank.rows.clone()
        self.model = Encoder(nn.Linear(512, WIDTH)).double()
        self.online = [self.model]
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0, momentum=0.9, weight_decay=5e-4)

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        criterion = self.criterion([self.bank], [ours.method.labels], k=NEIGHBOURS)
        loss, rows = criterion(ours.positions(), self.model(views[0]), 0)
        self.moved = self.bank.index_copy(0, ours.positions(), rows.detach())
        return loss.sum()

    def update(self, ours: Experiment) -> None:
        super().update(ours)
        self.bank = self.moved

    def queues(self, ours: Experiment) -> Iterator[Pair]:
        yield Pair("bank", self.bank, ours.method.bank.rows)


OURS = (
    *("method=local_aggregation", "bn_group=global", "views.random.count=1", "method.warmup_epochs=0"),
    *(f"method.projector.out={WIDTH}", f"method.images_per_neighbour={24 / NEIGHBOURS}"),
    *("method.images_per_cluster=6", "method.clusterings=2"),
)

COMPARISONS = [
    Training("local_aggregation", SOURCE, LocalAggregation, OURS, (32,), steps_per_epoch=1, tolerance=1e-7)
]
