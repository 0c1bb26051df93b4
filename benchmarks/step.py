"""One training step against lightly's parts in plain PyTorch: SimCLR and MoCo v2, two views an image.

A step is what `cl.training.loop` does with a batch that is on the device and augmented: forward, loss, backward, optimizer, target
encoder and queue. Ours is built from pipeline/conf as a run is. Theirs is written as lightly's examples are: torchvision's
network and lightly's heads, loss, queue and moving average in float32, contiguous. Both have SGD with momentum and weight
decay. MoCo goes without ShuffleBN and groups of batch norm (`bn_group=global`), which lightly's example has not either.
SimCLR's views share a pass and its statistics here and have one each there, which is the same work.

Both sides have the same initial weights; their losses are compared first. Then all take turns on all cores, and a figure is the
best of its turns, a ratio is within a run. An image is both its views.
"""

import copy
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torchvision
from lightly.loss import NTXentLoss
from lightly.models.modules.heads import MoCoProjectionHead, SimCLRProjectionHead
from lightly.models.utils import deactivate_requires_grad, update_momentum
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cl.config import Params, load
from cl.runtime import machine
from cl.runtime.cores import cores
from cl.runtime.machine import Machine
from cl.training import optim
from pipeline.compose import compose
from pipeline.pretrain import build

ROUNDS, STEPS = {"cpu": 3, "cuda": 5}, {"cpu": 1, "cuda": 10}  # turns, and steps in each
FEW = 8  # images on which the losses are compared
TARGET = 1.5
PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
}  # dense bfloat16
GLOBAL = ["loss=infonce", "bn_group=global"]
METHODS = {  # lightly's SimCLR head ends in batch norm
    "SimCLR": ["method.projector.last_norm=affine", "method.projector.last_bias=false"],
    "MoCo v2": ["method.shuffle=false"],
}


@dataclass(frozen=True)
class Case:
    """A network, a size of views, the files of pipeline/conf for both methods, and how many images a step has."""

    name: str
    overrides: list[str]
    methods: dict[str, str]
    batch: dict[str, int]


SMALL, LARGE = (
    {"SimCLR": "simclr", "MoCo v2": "moco_v2"},
    {"SimCLR": "simclr_imagenet", "MoCo v2": "moco_v2_imagenet"},
)
CASES = [
    Case("ResNet-18, 32 px", ["backbone=resnet18_small", "views=small"], SMALL, {"cpu": 64, "cuda": 1024}),
    Case(
        "ResNet-18, 64 px",
        ["backbone=resnet18_small", "views=small", "views.random.size=64"],
        SMALL,
        {"cpu": 16, "cuda": 512},
    ),
    Case("ResNet-50, 224 px", ["backbone=resnet50", "views=mocov2"], LARGE, {"cpu": 8, "cuda": 128}),
]


def main() -> None:
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    machine.find("fp32", deterministic=False)
    torch.set_num_threads(cores())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; images a second, and times theirs")
    if machine.slow_bf16():
        print("bfloat16 is emulated here")
    for device in devices:
        if device == "cuda":
            print(torch.cuda.get_device_name())
        for case in CASES:
            for method in METHODS:
                measure(case, method, device)
    print("solo-learn on the package index (1.0.2) asks for torch 1.9.1: not compared")


def measure(case: Case, method: str, device: str) -> None:
    """Print the rates of one network with one method."""
    batch = case.batch[device]
    choice = [
        *case.overrides,
        f"method={case.methods[method]}",
        *GLOBAL,
        *METHODS[method],
        f"optim.batch_size={batch}",
    ]
    params = parameters(choice)
    shape, place = (batch, 3, params.view_sizes[0], params.view_sizes[0]), torch.device(device)
    views = [torch.randn(shape, device=place) for _ in range(2)]
    ours = {precision: Ours(params, precision, place, views) for precision in ("bf16", "fp32")}
    theirs = Theirs(params, ours["fp32"].task.method, views)
    agreed = agree(ours["fp32"], theirs, views[0][:FEW])
    steps: dict[str, Callable[[], object]] = {
        "ours, bf16": ours["bf16"].step,
        "ours, fp32": ours["fp32"].step,
    }
    times = fastest({**steps, "theirs, fp32": theirs.step}, device)
    rates = {name: batch / seconds for name, seconds in times.items()}
    print(f"{case.name}, {method}, {batch} images, {agreed}")
    for name, rate in rates.items():
        used = share(ours["bf16"].step, times[name]) if device == "cuda" and name == "ours, bf16" else ""
        print(f"  {name:14} {rate:9.1f}   {rate / rates['theirs, fp32']:5.2f}{used}")
    verdict(f"  bf16: {TARGET:g} times theirs", rates["ours, bf16"] / rates["theirs, fp32"], TARGET)


def parameters(overrides: list[str]) -> Params:
    """The checked parameters of a run with these choices."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "params.yaml"
        compose(file, overrides)
        return load(file)


class Ours:
    """The step of `cl.training.loop`, on views as `cl.data.augment` hands them over: channels-last."""

    def __init__(
        self, params: Params, precision: machine.Precision, device: torch.device, views: list[Tensor]
    ) -> None:
        here: Machine = replace(machine.find(precision, deterministic=False), device=device)
        self.params, self.task = params, build(params, here).train()
        self.optimizer = optim.build(params.optim, [optim.Part(self.task)])
        self.views = [view.contiguous(memory_format=torch.channels_last) for view in views]
        self.labels = torch.zeros(len(views[0]), dtype=torch.int64, device=device)
        self.done = 0

    def step(self) -> float:
        optim.set_lr(self.optimizer, self.params.optim.lr(), 1.0)
        self.task.begin_step(self.done, 0.0)
        loss = self.task(self.views, self.labels)
        loss.backward()
        optim.clip_gradients(self.optimizer, self.params.optim.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.task.after_step(0.0)
        self.done += 1
        return float(loss.detach())


class Theirs(nn.Module):
    """The step of lightly's examples of SimCLR and MoCo, with the initial weights of `method`."""

    def __init__(self, params: Params, method: Any, views: list[Tensor]) -> None:
        super().__init__()
        projector, moco = params.method.projector, params.method.kind == "moco"
        head = MoCoProjectionHead if moco else SimCLRProjectionHead
        self.encoder = nn.Sequential(
            network(params), head(method.backbone.fc_features, projector.hidden[0], projector.out)
        )
        self.target = copy.deepcopy(self.encoder) if moco else None
        self.loss = NTXentLoss(params.temperature, memory_bank_size=method.queue.rows.shape if moco else 0)
        self.momentum = method.target.ema.momentum if moco else 0.0
        self.to(views[0].device)
        if self.target:
            deactivate_requires_grad(self.target)
            self.loss.memory_bank.bank.copy_(method.queue.rows)
        with torch.no_grad():
            for own, given in zip(self.parameters(), method.parameters(), strict=True):
                assert own.shape == given.shape and own.requires_grad == given.requires_grad
                own.copy_(given)
        self.views, config = [view.contiguous() for view in views], params.optim
        chosen = [p for p in self.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(
            chosen, config.lr(), momentum=config.momentum, weight_decay=config.weight_decay
        )
        self.total = torch.zeros((), device=views[0].device)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        second = self.encoder(second) if self.target is None else self.target(second).detach()
        return self.loss(self.encoder(first), second)

    def step(self) -> None:
        torch.backends.cudnn.allow_tf32 = True  # PyTorch's own choice
        if self.target:
            update_momentum(self.encoder, self.target, self.momentum)
        loss = self(*self.views)
        self.total += loss.detach()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        torch.backends.cudnn.allow_tf32 = False  # ours, fp32


def network(params: Params) -> nn.Module:
    """torchvision's, or with the stem that everybody writes for small images."""
    backbone = getattr(torchvision.models, params.backbone.kind)()
    backbone.fc = nn.Identity()
    if params.backbone.stem == "small":
        backbone.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        backbone.maxpool = nn.Identity()
    return backbone


@torch.no_grad()
def agree(ours: Ours, theirs: Theirs, images: Tensor) -> str:
    """What is the same on both sides: parameters, and the loss where both views are of the same images, in another order."""
    size = sum(p.numel() for p in ours.task.parameters())
    assert size == sum(p.numel() for p in theirs.parameters())
    views = [images, images.roll(1, 0)]  # batch statistics of one view are those of both
    found, expected = float(ours.task(views, ours.labels)), float(theirs(*views))
    assert abs(found - expected) < 1e-3 * abs(expected), f"{found} is not lightly's {expected}"
    return f"{size / 1e6:.1f} M parameters, loss {found:.4f} and theirs {expected:.4f}"


def fastest(steps: dict[str, Callable[[], object]], device: str) -> dict[str, float]:
    """Seconds of every step: the best of some rounds, in each of which all of them run, after one that does not count."""
    seconds = dict.fromkeys(steps, float("inf"))
    for step in steps.values():
        step()
    for _ in range(ROUNDS[device]):
        for name, step in steps.items():
            seconds[name] = min(seconds[name], clock(step, device))
    return seconds


def clock(step: Callable[[], object], device: str) -> float:
    """Seconds of one step."""
    synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronise()
    began = time.perf_counter()
    for _ in range(STEPS[device]):
        step()
    synchronise()
    return (time.perf_counter() - began) / STEPS[device]


def share(step: Callable[[], object], seconds: float) -> str:
    """How much of the card's bfloat16 peak the convolutions and matrix products of a step come to, if the card is known."""
    with FlopCounterMode(display=False) as counter:
        step()
    rate = counter.get_total_flops() / seconds
    peak = next((peak for name, peak in PEAKS.items() if name in torch.cuda.get_device_name()), None)
    return f"   {rate / 1e12:.0f} TFLOP/s" + (f", {rate / peak:.0%} of the card's peak" if peak else "")


def verdict(what: str, found: float, least: float) -> None:
    print(f"{what}: {found:.2f}, {'reached' if found >= least else 'MISSED'}", flush=True)


if __name__ == "__main__":
    main()
