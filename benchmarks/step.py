"""One training step against lightly's parts in plain PyTorch: SimCLR and MoCo v2, two views per image.

A step is what `cl.training.loop` does with an augmented batch on the device: forward, loss, backward,
optimizer, target encoder and queue. Our step is built from pipeline/conf, as in a run. Their step is
written like lightly's examples: torchvision's network and lightly's heads, loss, queue and moving average
in float32, contiguous. Both use SGD with momentum and weight decay. MoCo runs without ShuffleBN and
batch-norm groups (`bn_group=global`), as in lightly's example. SimCLR's two views share one pass and its
statistics here and have one pass each there, which is the same amount of work.

Both sides start from the same weights, and their losses are compared first. Then all take turns on all
cores; a figure is the best of its turns, and ratios are taken within a run. An image counts once, with both
its views.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torchvision
from lightly.loss import NTXentLoss
from lightly.models.modules.heads import MoCoProjectionHead, SimCLRProjectionHead
from lightly.models.utils import deactivate_requires_grad, update_momentum
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.parameters import parameters
from cl.config import Params
from cl.objective.batch import Batch
from cl.runtime import machine
from cl.runtime.cores import cores
from cl.training import optim
from pipeline.support.pretraining import build

ROUNDS = {"cpu": 3, "cuda": 5}
STEPS = {"cpu": 1, "cuda": 10}  # in each round
COMPARED = 8  # images for the comparison of the losses
TARGET = 1.5  # times lightly's speed, in bfloat16
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
    """A network and view size, the file in pipeline/conf/method for each method, and the images per step."""

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
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print("images per second, and the ratio to lightly")
    if machine.slow_bf16():
        print("bfloat16 is emulated here")
    for device in devices:
        if device == "cuda":
            print(torch.cuda.get_device_name())
        for case in CASES:
            for method in METHODS:
                measure(case, method, device)
    print("solo-learn 1.0.2 requires torch 1.9.1; not compared")


def measure(case: Case, method: str, device: str) -> None:
    """Measure one network with one method and print the rates."""
    batch = case.batch[device]
    params = parameters(
        *case.overrides,
        f"method={case.methods[method]}",
        *GLOBAL,
        *METHODS[method],
        f"optim.batch_size={batch}",
    )
    size = params.view_sizes[0]
    views = [torch.randn(batch, 3, size, size, device=device) for _ in range(2)]
    ours = {precision: Ours(params, precision, views) for precision in ("bf16", "fp32")}
    theirs = Theirs(params, ours["fp32"].task.method, views)
    agreed = agree(ours["fp32"], theirs, views[0][:COMPARED])
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
    verdict(f"  bf16: {TARGET:g} times lightly's speed", rates["ours, bf16"] / rates["theirs, fp32"], TARGET)


def batch_of(views: list[Tensor]) -> Batch:
    positions = torch.arange(len(views[0]), device=views[0].device)
    return Batch(views, torch.zeros_like(positions), positions)


class Ours:
    """The step of `cl.training.loop`, on channels-last views as `cl.data.augment` returns them."""

    def __init__(self, params: Params, precision: machine.Precision, views: list[Tensor]) -> None:
        here = replace(machine.find(precision, deterministic=False), device=views[0].device)
        self.params, self.task = params, build(params, here, len(views[0])).train()
        self.optimizer = optim.build(params.optim, [optim.Part(self.task)])
        self.batch = batch_of([view.contiguous(memory_format=torch.channels_last) for view in views])
        self.done = 0

    def step(self) -> float:
        optim.set_lr(self.optimizer, self.params.optim.peak_lr, 1.0)
        self.task.begin_step(self.done, 0.0)
        loss = self.task(self.batch)
        loss.backward()
        optim.clip_gradients(self.optimizer, self.params.optim)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.task.after_step(0.0)
        self.done += 1
        return float(loss.detach())


class Theirs(nn.Module):
    """The step of lightly's SimCLR and MoCo examples, with the initial weights of `method`."""

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
            chosen, config.peak_lr, momentum=config.momentum, weight_decay=config.weight_decay
        )
        self.total = torch.zeros((), device=views[0].device)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        second = self.encoder(second) if self.target is None else self.target(second).detach()
        return self.loss(self.encoder(first), second)

    def step(self) -> None:
        torch.backends.cudnn.allow_tf32 = True  # PyTorch's default
        if self.target:
            update_momentum(self.encoder, self.target, self.momentum)
        loss = self(*self.views)
        self.total += loss.detach()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        torch.backends.cudnn.allow_tf32 = False  # as in our fp32


def network(params: Params) -> nn.Module:
    """A ResNet of torchvision, with the usual stem for small images where `stem: small`."""
    backbone = getattr(torchvision.models, params.backbone.name)()
    backbone.fc = nn.Identity()
    if params.backbone.stem == "small":
        backbone.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        backbone.maxpool = nn.Identity()
    return backbone


@torch.no_grad()
def agree(ours: Ours, theirs: Theirs, images: Tensor) -> str:
    """Check that both sides have as many parameters, and the same loss on two views of the same images."""
    size = sum(p.numel() for p in ours.task.parameters())
    assert size == sum(p.numel() for p in theirs.parameters())
    views = [images, images.roll(1, 0)]  # a view has the same batch statistics as both together
    found, expected = float(ours.task(batch_of(views))), float(theirs(*views))
    assert abs(found - expected) < 1e-3 * abs(expected), f"our loss is {found}, lightly's is {expected}"
    return f"{size / 1e6:.1f} M parameters, our loss {found:.4f}, theirs {expected:.4f}"


def fastest(steps: dict[str, Callable[[], object]], device: str) -> dict[str, float]:
    """Seconds per step of every case: after a warm-up, the best of several rounds in which all cases run."""
    seconds = dict.fromkeys(steps, float("inf"))
    for step in steps.values():
        step()
    for _ in range(ROUNDS[device]):
        for name, step in steps.items():
            seconds[name] = min(seconds[name], clock(step, device))
    return seconds


def clock(step: Callable[[], object], device: str) -> float:
    """Seconds per step, averaged over a round."""
    synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronise()
    began = time.perf_counter()
    for _ in range(STEPS[device]):
        step()
    synchronise()
    return (time.perf_counter() - began) / STEPS[device]


def share(step: Callable[[], object], seconds: float) -> str:
    """The FLOP/s of convolutions and matrix products, and their share of the card's bf16 peak if known."""
    with FlopCounterMode(display=False) as counter:
        step()
    rate = counter.get_total_flops() / seconds
    peak = next((peak for name, peak in PEAKS.items() if name in torch.cuda.get_device_name()), None)
    return f"   {rate / 1e12:.0f} TFLOP/s" + (f", {rate / peak:.0%} of the card's peak" if peak else "")


def verdict(what: str, found: float, least: float) -> None:
    print(f"{what}: {found:.2f}, {'reached' if found >= least else 'MISSED'}", flush=True)


if __name__ == "__main__":
    main()
