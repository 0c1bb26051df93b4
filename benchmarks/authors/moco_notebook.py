"""MoCo, asymmetric and symmetric, beside the notebook of facebookresearch/moco (branch colab-notebook).

It shuffles between groups of batch norm in one process, and puts image n into group n mod 2, ours into
n // 4: it gets the images in another order. It enqueues the first view's keys before the second's, ours the
other way round. It does not count batches.
"""

import copy
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import IMAGES, Experiment
from benchmarks.authors.harness.pairing import BUFFERS, Pair
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import definitions, permutations, without_cuda

SOURCE = Source("facebookresearch/moco", "f736491", "colab/moco_cifar10_demo.ipynb")
WIDTH, QUEUE = 16, 32
THEIR_IMAGES = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # our place n has their image of this number
PLACES = THEIR_IMAGES.argsort()


class Notebook(Author):
    """The notebook's ModelMoCo with its defaults, with SGD of MoCo's own decay for this data."""

    buffers = BUFFERS[:2]

    def __init__(self, folder: Path, ours: Experiment, symmetric: bool) -> None:
        without_cuda()
        names = ("SplitBatchNorm", "ModelBase", "ModelMoCo")
        cells = json.loads((folder / SOURCE.file).read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        text = "\n".join(cell for cell in code if any(f"class {name}(" in cell for name in names))
        text = text.partition("# create model\n")[0]
        *_, model = definitions(text, *names, torch=torch, nn=nn, F=F, partial=partial, resnet=resnet)
        self.model = model(WIDTH, QUEUE, m=0.99, T=0.1, bn_splits=2, symmetric=symmetric).double()
        self.symmetric = symmetric
        self.online, self.target = [self.model.encoder_q], [self.model.encoder_k]
        self.model.queue.copy_(self.in_their_order(ours.method.queue.rows).T)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, 0, momentum=0.9, weight_decay=5e-4)

    def in_their_order(self, rows: Tensor) -> Tensor:
        """The rows of our queue where theirs has them."""
        blocks = rows.view(-1, IMAGES, WIDTH)[:, PLACES]
        if self.symmetric:
            blocks = blocks.view(-1, 2, IMAGES, WIDTH).flip(1)
        return blocks.reshape(QUEUE, WIDTH)

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        drawn = [
            ours.method.shuffled(IMAGES, f"keys {view}") for view in ((1, 0) if self.symmetric else (1,))
        ]
        with permutations(*(THEIR_IMAGES[order][PLACES] for order in drawn)):
            return self.model(*(view[PLACES].contiguous() for view in views))

    def moved_target(self, ours: Experiment) -> list[nn.Module]:
        moved = copy.deepcopy(self.model)
        moved._momentum_update_key_encoder()
        return [moved.encoder_k]

    def queues(self, ours: Experiment) -> Iterator[Pair]:
        yield Pair("queue", self.model.queue.T, self.in_their_order(ours.method.queue.rows))


OURS = ("method=moco_v1", "backbone=resnet18_small", "loss=infonce", "temperature=0.1", "bn_group=4")
SIZES = (f"method.projector.out={WIDTH}", f"method.queue={QUEUE}")

COMPARISONS = [
    Training("moco_notebook", SOURCE, partial(Notebook, symmetric=False), (*OURS, *SIZES), (16, 16)),
    Training(
        "moco_notebook_symmetric",
        SOURCE,
        partial(Notebook, symmetric=True),
        (*OURS, *SIZES, "method.symmetric=true", "method.scale=2.0"),
        (16, 16),
    ),
]
