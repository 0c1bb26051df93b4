"""PIRL's later form, a softmax, beside facebookresearch/vissl (its authors') and HobbitLong/PyContrast.

Their samples are ours: VISSL draws others for the patches than for the image, and its NCE takes the
normalizer from the patches alone. PyContrast shuffles the patches in its head; here they come shuffled.
The patches go through the encoder first, as in VISSL: running statistics depend on the order.
"""

import logging
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import Experiment
from benchmarks.authors.harness.networks import Encoder
from benchmarks.authors.harness.pairing import Pair
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import definitions, module_from, without_cuda
from benchmarks.authors.npid import SAMPLES, WIDTH, Uniform, drawing
from cl.networks.passes import image_major

PYCONTRAST = Source("HobbitLong/PyContrast", "84f94ea", "pycontrast/memory/mem_bank.py")
VISSL = Source("facebookresearch/vissl", "09270ed", "vissl/losses/nce_loss.py")
PATCHES, TEMPERATURE = 9, 0.07


class Jigsaw(nn.Module):
    """VISSL's heads for patches: one layer for each, one for all."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(512, WIDTH), nn.Linear(PATCHES * WIDTH, WIDTH)

    def forward(self, features: Tensor) -> Tensor:
        return F.normalize(self.fc2(self.fc1(features).unflatten(0, (-1, PATCHES)).flatten(1)), dim=1)


class PIRL(Author):
    """Torchvision's encoder with their heads, memory and loss (`build`), and SGD."""

    def __init__(self, folder: Path, ours: Experiment, build: Callable[..., tuple]) -> None:
        without_cuda()
        self.model = Encoder(nn.Linear(512, WIDTH)).double()
        self.jigsaw, self.bank, self.criterion = build(folder, ours.images)
        self.bank.memory.copy_(ours.method.bank.rows)
        self.online, self.heads = [self.model], [self.jigsaw.fc1, self.jigsaw.fc2]
        parameters = [p for module in (self.model, self.jigsaw) for p in module.parameters()]
        self.optimizer = torch.optim.SGD(parameters, 0, momentum=0.9, weight_decay=5e-4)

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        self.bank.multinomial = drawing(ours, ours.method.bank, SAMPLES)
        patches = self.jigsaw(self.model.backbone(image_major(views[1:])))
        image = F.normalize(self.model(views[0]), dim=1)
        return self.criterion(image, patches, ours.positions())

    def queues(self, ours: Experiment) -> Iterator[Pair]:
        yield Pair("bank", self.bank.memory, ours.method.bank.rows)


def pycontrast(folder: Path, images: int) -> tuple:
    """Their head and memory, with half the loss for the patches."""
    folder = folder / "pycontrast"
    jigsaw = module_from(folder, "networks.util").JigsawHead(512, WIDTH).double()
    jigsaw.get_shuffle_ids = torch.arange
    bank = module_from(folder, "memory.mem_bank").RGBMem(WIDTH, images, SAMPLES, TEMPERATURE, 0.5).double()

    def criterion(image: Tensor, patches: Tensor, positions: Tensor) -> Tensor:
        *logits, labels = bank(image, positions, patches)
        return sum(F.cross_entropy(x, labels) for x in logits) / 2

    return jigsaw, bank, criterion


class Settings(dict):
    """Their AttrDict: keys that are attributes too."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


def vissl(folder: Path, images: int) -> tuple:
    """Their loss with memory: of the patches, and then of the image, which updates the memory."""
    environment: dict[str, Any] = {"torch": torch, "nn": nn, "math": math, "logging": logging}
    environment |= {"Union": Union, "List": list, "AttrDict": Settings, "ClassyLoss": nn.Module}
    environment |= {"AliasMethod": Uniform, "get_rank": lambda: 0, "is_pos_int": lambda number: number > 0}
    environment |= dict.fromkeys(("all_reduce_mean", "gather_from_all"), lambda x: x)
    environment["register_loss"] = lambda name: lambda loss: loss
    names = ("NCELossWithMemory", "NCEAverage")
    builder, _ = definitions(folder / VISSL.file, *names, **environment)
    loss = builder(vissl_settings(images)).double()
    loss.nce_average.params = torch.tensor([SAMPLES, TEMPERATURE, -1, 0.5], dtype=torch.float64)
    criterion = lambda image, patches, positions: loss([patches, image], positions)  # noqa: E731
    return Jigsaw().double(), loss.nce_average, criterion


def vissl_settings(images: int) -> Settings:
    """As in pirl_jigsaw_4node_resnet50.yaml, with cross-entropy."""
    return Settings(
        norm_embedding=True,
        temperature=TEMPERATURE,
        norm_constant=-1,
        update_mem_with_emb_index=1,
        loss_weights=[0.5, 0.5],
        loss_type="cross_entropy",
        num_train_samples=images,
        negative_sampling_params=Settings(num_negatives=SAMPLES, type="random"),
        memory_params=Settings(
            embedding_dim=WIDTH, momentum=0.5, norm_init=True, update_mem_on_forward=False
        ),
    )


OURS = (
    *("method=pirl", "loss=infonce", "bn_group=global"),
    *(f"method.projector.out={WIDTH}", f"method.negatives={SAMPLES}"),
)
VIEWS = (32,) * (1 + PATCHES)

COMPARISONS = [
    Training("pirl_pycontrast", PYCONTRAST, partial(PIRL, build=pycontrast), OURS, VIEWS),
    Training("pirl_vissl", VISSL, partial(PIRL, build=vissl), OURS, VIEWS),
]
