"""NNCLR beside solo-learn, whose class runs on a bare stand-in for its Lightning base.

On one process, and on two with synchronised batch norm and gathered embeddings. Rounding grows eightfold per
step, to 1e-9 after five.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import Experiment
from benchmarks.authors.harness.networks import backbone
from benchmarks.authors.harness.pairing import Pair
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import definitions, module_of_file, stub, synchronise
from cl.runtime.distributed import ranks

SOURCE = Source("vturrisi/solo-learn", "9187ea3", "solo/methods/nnclr.py")
SETTINGS = SimpleNamespace(
    temperature=0.1, queue_size=24, proj_hidden_dim=48, proj_output_dim=16, pred_hidden_dim=32
)


class Base(nn.Module):
    """What NNCLR uses of solo-learn's BaseMethod."""

    features_dim = 512

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.backbone = backbone()

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"feats": self.backbone(images)}

    def training_step(self, batch: tuple, number: int) -> dict:
        outputs = [self(view) for view in batch[1]]
        return {"loss": 0.0, "z": [o["z"] for o in outputs], "p": [o["p"] for o in outputs]}

    def log_dict(self, *args, **kwargs) -> None:
        """Log nothing."""


class NNCLR(Author):
    """Their NNCLR and SGD."""

    def __init__(self, folder: Path, ours: Experiment) -> None:
        names = ("get_rank", "GatherLayer", "gather")
        misc = definitions(folder / "solo" / "utils" / "misc.py", *names, torch=torch, dist=dist)
        stub("omegaconf", DictConfig=dict)
        for package in ("solo", "solo.utils", "solo.losses", "solo.methods"):
            stub(package)
        stub("solo.utils.misc", **dict(zip(names, misc, strict=True)), omegaconf_select=None)
        stub("solo.methods.base", BaseMethod=Base)
        module_of_file(folder / "solo" / "losses" / "nnclr.py", "solo.losses.nnclr")
        builder = module_of_file(folder / SOURCE.file, "solo.methods.nnclr").NNCLR
        self.model = builder(SimpleNamespace(method_kwargs=SETTINGS)).double()
        if ranks() > 1:
            synchronise([self.model])
        self.online = [self.model.backbone, self.model.projector]
        self.heads = [self.model.predictor]
        self.model.queue.copy_(ours.method.queue.rows)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0, momentum=0.9, weight_decay=5e-3)

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        labels = torch.zeros(len(views[0]), dtype=torch.int64)
        return self.model.training_step((None, views, labels), ours.step)

    def queues(self, ours: Experiment) -> Iterator[Pair]:
        yield Pair("queue", self.model.queue, ours.method.queue.rows)
        yield Pair("pointer", self.model.queue_ptr[0], ours.method.queue.oldest)


OURS = (
    *(
        "method=nnclr_imagenet",
        "loss=infonce",
        "method.queue=24",
        "optim.base_lr=0.005",
        "optim.weight_decay=5e-3",
    ),
    *("method.projector.hidden=[48,48]", "method.projector.out=16"),
    *("method.predictor.hidden=[32]", "method.predictor.out=16"),
)

COMPARISONS = [
    Training("nnclr", SOURCE, NNCLR, OURS, (64, 64), tolerance=1e-9),
    Training("nnclr_two_processes", SOURCE, NNCLR, OURS, (64, 64), processes=2, tolerance=1e-9),
]
