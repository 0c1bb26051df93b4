"""Five variants of LARS: MoCo v3, google-research/simclr, OpenSelfSup, NVIDIA/apex (LARC) and Fast-MoCo.

Each trains a small network for five steps, also from a matrix that is 0, except in OpenSelfSup, where such a
matrix never moves.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.authors.harness import tensorflow_stand_in
from benchmarks.authors.harness.comparison import Agreement, Numbers
from benchmarks.authors.harness.experiment import STEPS, draw_weights, uniform
from benchmarks.authors.harness.pairing import Pair
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import definitions, module_of_file
from benchmarks.parameters import parameters
from cl.training import optim

MOCO_V3 = Source("facebookresearch/moco-v3", "c349e6e", "moco/optimizer.py")
GOOGLE = Source("google-research/simclr", "383d414", "lars_optimizer.py")
OPENSELFSUP = Source("open-mmlab/OpenSelfSup", "1db69ec", "openselfsup/utils/optimizers.py")
APEX = Source("NVIDIA/apex", "2ec84eb", "apex/parallel/LARC.py")
FAST_MOCO = Source("orashi/Fast-MoCo", "d4fef97", "core/optimizer/lars.py")
RATE, DECAY = 0.4, 0.01

Step = Callable[[float], None]  # an optimizer's step at a learning rate


@dataclass(frozen=True)
class Variant:
    """A comparison; `theirs` makes their step for a network, `chosen` selects ours.

    from_zero: also from a matrix that is 0.
    """

    name: str
    source: Source
    theirs: Callable[[Path, nn.Module], Step]
    chosen: str
    from_zero: bool = True
    processes: int = 1
    tolerance: float = 1e-14

    def compare(self, folder: Path) -> tuple[Agreement, Numbers]:
        """The agreement of the weights after every step, and their norms."""
        pairs = []
        for zero in {False, self.from_zero}:
            networks = network(zero), network(zero)
            steps = self.theirs(folder, networks[0]), self._ours(networks[1])
            trained = [trajectory(*each) for each in zip(networks, steps, strict=True)]
            pairs += [Pair("weight", *both) for both in zip(*trained, strict=True)]
        return {"weights": max(pair.difference() for pair in pairs)}, self.replay()

    def replay(self) -> Numbers:
        """The norms of our weights after every step."""
        norms = {}
        for zero in {False, self.from_zero}:
            ours = network(zero)
            norms["from zero" if zero else "weights"] = [
                float(weight.norm()) for weight in trajectory(ours, self._ours(ours))
            ]
        return norms

    def _ours(self, model: nn.Module) -> Step:
        config = self._config()
        optimizer = optim.build(config, [optim.Part(model)])

        def step(rate: float) -> None:
            optim.set_lr(optimizer, rate, 1.0)
            optimizer.step()

        return step

    def _config(self) -> optim.Config:
        group, name = self.chosen.split("=")
        params = parameters(f"{group}={name}" if group == "optim" else f"{group}=[{name}]")
        config = params.optim if group == "optim" else params.evaluations[name].optim
        return config.model_copy(update={"weight_decay": DECAY})


class Network(nn.Module):
    """A convolution with batch norm, and two classifiers whose logits are added."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.first, self.second = nn.Linear(288, 5), nn.Linear(288, 5)

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)
        return self.first(features) + self.second(features)


def network(zero: bool) -> nn.Module:
    """The network, with one matrix of 0 if `zero`."""
    model = Network().double()
    draw_weights(model)
    if zero:
        nn.init.zeros_(model.second.weight)
    return model


def trajectory(model: nn.Module, step: Step) -> list[Tensor]:
    """The weights after each step."""
    found = []
    for number in range(STEPS):
        generator = torch.Generator().manual_seed(number)
        images = uniform((6, 3, 8, 8), generator)
        model.zero_grad()
        nn.functional.cross_entropy(model(images), torch.arange(6) % 5).backward()
        step(RATE * (1 - 0.1 * number))
        found += [p.detach().clone() for p in model.parameters()]
    return found


def setting_lr(optimizer: Any) -> Step:
    def step(rate: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()

    return step


def moco_v3(folder: Path, model: nn.Module) -> Step:
    lars = module_of_file(folder / MOCO_V3.file).LARS
    return setting_lr(lars(model.parameters(), RATE, weight_decay=DECAY, momentum=0.9))


def torch_lars(file: Path) -> Any:
    environment = {"torch": torch, "Optimizer": torch.optim.Optimizer, "required": object()}
    return definitions(file, "LARS", **environment)[0]


def openselfsup(folder: Path, model: nn.Module) -> Step:
    matrices, vectors = ([p for p in model.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0, "lars_exclude": True}]
    lars = torch_lars(folder / OPENSELFSUP.file)
    return setting_lr(lars(groups, RATE, momentum=0.9, weight_decay=DECAY))


def apex(folder: Path, model: nn.Module) -> Step:
    (larc,) = definitions(folder / APEX.file, "LARC", torch=torch)
    inner = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=DECAY)
    return setting_lr(larc(inner, trust_coefficient=0.001, clip=False))


def fast_moco(folder: Path, model: nn.Module) -> Step:
    lars = torch_lars(folder / FAST_MOCO.file)
    return setting_lr(lars(model.parameters(), RATE, momentum=0.9, weight_decay=DECAY))


def google(folder: Path, model: nn.Module) -> Step:
    tf = tensorflow_stand_in.for_optimizer()
    (lars,) = definitions(folder / GOOGLE.file, "LARSOptimizer", tf=tf, re=re, EETA_DEFAULT=0.001)
    excluded = ["batch_normalization", "bias"]
    optimizer = lars(RATE, momentum=0.9, weight_decay=DECAY, exclude_from_weight_decay=excluded)
    return lambda rate: apply_gradients(optimizer, model, rate)


@torch.no_grad()
def apply_gradients(optimizer: Any, model: nn.Module, rate: float) -> None:
    """Google's step, with the names by which it finds batch norm and biases."""
    optimizer.learning_rate = rate
    optimizer.apply_gradients(list(gradients_and_variables(model)))


def gradients_and_variables(model: nn.Module) -> Iterator[tuple[Tensor, tensorflow_stand_in.Variable]]:
    for name, p in model.named_parameters():
        assert p.grad is not None
        prefix = "batch_normalization/" if name.startswith("features.1.") else ""
        yield p.grad.clone(), tensorflow_stand_in.Variable(p, prefix + name.replace("weight", "kernel"))


COMPARISONS = [
    Variant("lars_moco_v3", MOCO_V3, moco_v3, "optim=lars"),
    Variant("lars_google", GOOGLE, google, "optim=lars_simclr"),
    Variant("lars_openselfsup", OPENSELFSUP, openselfsup, "optim=lars_openselfsup", from_zero=False),
    Variant("larc", APEX, apex, "optim=larc"),
    Variant("lars_fast_moco", FAST_MOCO, fast_moco, "evaluation=fastmoco_lin"),
]
