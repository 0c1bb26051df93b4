"""CMC beside HobbitLong/CMC: its two banks with NCE and with the softmax, on two of torchvision's encoders.

Their images are converted to Lab by scikit-image, as in their script. Their samples are ours. Their NCE adds
1e-7 to denominators for single precision; here it adds 0.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from skimage.color import rgb2lab
from torch import Tensor, nn

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import Experiment
from benchmarks.authors.harness.networks import backbone
from benchmarks.authors.harness.pairing import Pair
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import module_from, without_cuda
from benchmarks.authors.npid import SAMPLES, WIDTH, drawing

SOURCE = Source("HobbitLong/CMC", "7b227be", "train_CMC.py")
LOWEST, HIGHEST = torch.tensor([[0, -86.183, -107.857], [100, 98.233, 94.478]], dtype=torch.float64)


class CMC(Author):
    """Their NCEAverage and criterion, once for each direction, with SGD."""

    def __init__(self, folder: Path, ours: Experiment, softmax: bool) -> None:
        without_cuda()
        criterion = module_from(folder, "NCE.NCECriterion")
        criterion.eps = 0.0
        self.criterion = criterion.NCESoftmaxLoss() if softmax else criterion.NCECriterion(ours.images)
        average = module_from(folder, "NCE.NCEAverage").NCEAverage
        self.bank = average(WIDTH, ours.images, SAMPLES, use_softmax=softmax).double()
        self.bank.params = torch.tensor([SAMPLES, 0.07, -1, -1, 0.5], dtype=torch.float64)
        for pair in self.queues(ours):
            pair.theirs.copy_(pair.ours)
        self.networks = nn.ModuleList(one_stream(channels) for channels in (1, 2)).double()
        self.projectors = nn.ModuleList(nn.Linear(512, WIDTH) for _ in range(2)).double()
        self.online = [self.networks, self.projectors]
        parameters = [p for module in self.online for p in module.parameters()]
        self.optimizer = torch.optim.SGD(parameters, 0, momentum=0.9, weight_decay=5e-4)

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        config = ours.params.dataset
        inputs = lab(views[0], config.mean, config.std).split((1, 2), 1)
        encoders = zip(self.networks, self.projectors, inputs, strict=True)
        lightness, colour = (F.normalize(head(net(x)), dim=1) for net, head, x in encoders)
        self.bank.multinomial = drawing(ours, ours.method.lightness, SAMPLES)
        return sum(self.criterion(out).sum() for out in self.bank(lightness, colour, ours.positions()))

    def queues(self, ours: Experiment) -> Iterator[Pair]:
        yield Pair("lightness", self.bank.memory_l, ours.method.lightness.rows)
        yield Pair("colour", self.bank.memory_ab, ours.method.colour.rows)


def one_stream(channels: int) -> nn.Module:
    """A ResNet-18 with this number of input channels."""
    network = backbone()
    network.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    return network


def lab(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Normalised RGB to Lab, normalised by its range as in their script."""
    scale, shift = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (std, mean))
    rgb = (images * scale + shift).clamp(0, 1)
    channels = torch.from_numpy(rgb2lab(rgb.permute(0, 2, 3, 1).numpy()))
    return ((channels - (LOWEST + HIGHEST) / 2) / ((HIGHEST - LOWEST) / 2)).permute(0, 3, 1, 2)


SIZES = (
    *("backbone=resnet18_lab", f"method.projector.out={WIDTH}", f"method.negatives={SAMPLES}"),
    "bn_group=global",
)
OURS = ("method=cmc_imagenet", *SIZES)

COMPARISONS = [
    Training("cmc_nce", SOURCE, partial(CMC, softmax=False), OURS, (32,)),
    Training("cmc_softmax", SOURCE, partial(CMC, softmax=True), (*OURS, "loss=infonce"), (32,)),
]
