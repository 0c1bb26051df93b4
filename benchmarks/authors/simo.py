"""SiMo with EqCo's margin, beside poodarchu/SelfSup with a stand-in for cvpods.

All negatives or four of them, and two alphas; four on two processes. Their released code has the margin in a
comment, which is taken out for the comparisons with a margin. Their loss is the sum over processes.
"""

import copy
import re
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import IMAGES, STEPS, Experiment
from benchmarks.authors.harness.networks import backbone
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import permutations, stub, synchronise, without_cuda
from cl.runtime.distributed import rank, ranks

SOURCE = Source(
    "poodarchu/SelfSup", "ce09b1f", "examples/simo/simo.res50.scratch.imagenet.224size.256bs.200e/simo.py"
)


class Backbone(nn.Module):
    """A ResNet-18 as cvpods gives it, with a last layer for SiMo to replace."""

    size_divisibility = 0

    def __init__(self) -> None:
        super().__init__()
        self.net, self.linear = backbone(), nn.Linear(512, 16)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"linear": self.linear(self.net(images))}


class SiMo(Author):
    """Their SiMo, with or without its margin, and SGD."""

    def __init__(
        self, folder: Path, ours: Experiment, margin: bool, negatives: int = IMAGES, alpha: int = 256
    ) -> None:
        without_cuda()
        module = simo_module(folder, margin)
        self.model = module.SiMo(settings(alpha, negatives)).double()
        self.model.normalizer = lambda images: images
        if ranks() > 1:
            synchronise([self.model])
        self.online, self.target = [self.model.network], [self.model.network_k]
        self.share = 1 / ranks()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, 0, momentum=0.9, weight_decay=5e-4)

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        drawn = torch.randperm(IMAGES - 1, generator=ours.method.generator("negatives"))
        with permutations(drawn):
            return self.model([{"image": pair} for pair in zip(*views, strict=True)])["loss_NTXent_i"]

    def moved_target(self, ours: Experiment) -> list[nn.Module]:
        moved = copy.deepcopy(self.model)
        moved._momentum_update_key_encoder()
        return [moved.network_k]


def simo_module(folder: Path, margin: bool) -> ModuleType:
    """Their module, with the margin if wanted."""
    comm = SimpleNamespace(
        get_world_size=ranks, get_rank=rank, _get_global_gloo_group=lambda: dist.group.WORLD
    )
    stub("cvpods")
    stub("cvpods.layers", ShapeSpec=lambda channels: None)
    stub("cvpods.structures", ImageList=None)
    stub("cvpods.layers.batch_norm", NaiveSyncBatchNorm1d=nn.BatchNorm1d)
    stub("cvpods.utils", comm=comm)
    text = (folder / SOURCE.file).read_text()
    if margin:
        text, found = re.subn(r"# (self\.alpha\b.*\*) *#.*", r"\1", text)
        assert found == 1, "the margin is not in a comment"
    module = stub("simo")
    exec(compile(text, SOURCE.file, "exec"), module.__dict__)
    module.accuracy = lambda *args, **kwargs: (0, 0)
    return module


def settings(alpha: int, negatives: int) -> SimpleNamespace:
    """Their configuration at a tiny size."""
    clr = {"DIM": 16, "TAU": 0.2, "MLP": True, "NORM": "SyncBN", "MOMENTUM": 0.999}
    return SimpleNamespace(
        MODEL=SimpleNamespace(
            DEVICE="cpu",
            CLR=SimpleNamespace(**clr, ALPHA=alpha, K=negatives),
            RESNETS=SimpleNamespace(),
            PIXEL_MEAN=[0.0, 0.0, 0.0],
            PIXEL_STD=[1.0, 1.0, 1.0],
        ),
        SOLVER=SimpleNamespace(IMS_PER_DEVICE=IMAGES // ranks()),
        build_backbone=lambda config, input_shape: Backbone(),
    )


SIZES = ("method.projector.hidden=[512]", "method.projector.out=16")
SCHEDULE = (
    *("optim.schedule=cosine_whole", "optim.warmup_epochs=2", "optim.warmup_start=0.001"),
    f"optim.epochs={STEPS}",
)
ALL = ("method=simo_imagenet", *SIZES, *SCHEDULE)
FOUR = ("method=simo_k16_imagenet", "method.negatives=4", *SIZES, *SCHEDULE)


def training(name: str, ours: tuple[str, ...], processes: int = 1, **options) -> Training:
    return Training(name, SOURCE, partial(SiMo, **options), ours, processes=processes, steps_per_epoch=1)


COMPARISONS = [
    training("simo_as_released", (*ALL, "loss=infonce"), margin=False),
    training("simo_four_as_released", (*FOUR, "loss=infonce"), margin=False, negatives=4),
    training("simo_four_alpha_256", (*FOUR, "loss=eqco_a256"), margin=True, negatives=4),
    training("simo_alpha_65536", (*ALL, "loss=eqco_a65536"), margin=True, alpha=65536),
    training("simo_two_processes", (*FOUR, "loss=eqco_a256"), 2, margin=True, negatives=4),
]
