"""What `benchmarks.versions` measures; it runs with the code of either commit, in separate processes."""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.parameters import parameters
from cl.data import augment_gpu
from cl.data.augment import augment
from cl.data.views import RandomNumbers, draw_colour_params
from cl.networks.batch_norm import GroupBatchNorm, set_groups, update_running_stats
from cl.objective.batch import Batch
from cl.objective.log_partition import log_partition
from cl.objective.negatives import Negatives
from cl.objective.sums import log_complement_sum, softplus_sum
from cl.runtime import machine
from cl.training import optim
from pipeline.support.locations import transform
from pipeline.support.pretraining import build

TEMPERATURE, WIDTH = 0.1, 128
SECONDS = 0.2  # of a turn, at least
Run = Callable[[], Tensor]  # returns numbers that both commits must agree on


def main() -> None:
    """For each line `CASE` of the input, print the CPU seconds of a call, and its results."""
    folder, tiny = sys.argv[1], sys.argv[2] == "tiny"
    assert Path(machine.__file__).is_relative_to(folder), f"{machine.__file__} is not in {folder}"
    machine.find("fp32", deterministic=False)
    torch.set_num_threads(1)
    runs: dict[str, Run] = {}
    for line in sys.stdin:
        name = line.strip()
        results = []
        if name not in runs:
            torch.manual_seed(0)
            runs[name] = CASES[name](16 if tiny else 1)
            results = runs[name]().double().tolist()
        print(json.dumps([seconds(runs[name], 0.0 if tiny else SECONDS), results]), flush=True)


def seconds(run: Run, least: float) -> float:
    """The CPU seconds of a call, which other programs disturb less than the clock's."""
    began, calls = time.process_time(), 0
    while calls == 0 or time.process_time() - began < least:
        run()
        calls += 1
    return (time.process_time() - began) / calls


def embeddings(n: int) -> Tensor:
    return F.normalize(torch.randn(n, WIDTH), dim=1).requires_grad_()


def with_gradients(compute: Callable[[], Tensor], *inputs: Tensor) -> Run:
    """The sum of what is computed, and the length of its gradient with respect to each of the inputs."""

    def run() -> Tensor:
        total = compute().sum()
        return torch.stack([total.detach(), *(x.norm() for x in torch.autograd.grad(total, inputs))])

    return run


def against_themselves(smaller: int) -> Run:
    n = 4096 // smaller
    images, itself = embeddings(n), torch.arange(n)
    pairs = torch.stack([itself, itself.roll(n // 2)], 1)
    return with_gradients(lambda: log_partition(images, Negatives(images, pairs), TEMPERATURE), images)


def against_others(smaller: int) -> Run:
    n = 4096 // smaller
    queries, others, own = embeddings(n), embeddings(n), torch.arange(n)[:, None]
    return with_gradients(
        lambda: log_partition(queries, Negatives(others, own), TEMPERATURE), queries, others
    )


def against_a_queue(smaller: int) -> Run:
    queries, queue = embeddings(256 // smaller), embeddings(65536 // smaller).detach()
    return with_gradients(lambda: log_partition(queries, Negatives(queue), TEMPERATURE), queries)


def with_groups(smaller: int) -> Run:
    n = 4096 // smaller
    images, groups = embeddings(n), torch.arange(n) // 4
    negatives = Negatives.of_other_images(images, Batch([], groups, torch.arange(n), groups))
    return with_gradients(lambda: log_partition(images, negatives, TEMPERATURE), images)


def selected_columns(smaller: int) -> Run:
    n = 2048 // smaller
    queries, others, columns = embeddings(n), embeddings(n), torch.randint(n, (n, 64))
    negatives = Negatives(others, selected=columns)
    return with_gradients(lambda: log_partition(queries, negatives, TEMPERATURE), queries, others)


def sum_over_negatives(function: Callable[..., Tensor], smaller: int) -> Run:
    n = 4096 // smaller
    queries, others, shift = embeddings(n), embeddings(n), torch.full((n,), 12.0, requires_grad=True)
    return with_gradients(
        lambda: function(queries, Negatives(others), TEMPERATURE, shift), queries, others, shift
    )


def norm_in_groups(smaller: int) -> Run:
    return _norm(GroupBatchNorm(nn.BatchNorm2d(64), 8), smaller)


def norm_over_ranks(smaller: int) -> Run:
    """Of the first of two ranks; nothing is sent."""
    run = _norm(GroupBatchNorm(nn.BatchNorm2d(64), 1), smaller)

    def as_one_of_two() -> Tensor:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        try:
            return run()
        finally:
            dist.destroy_process_group()

    return as_one_of_two


def _norm(norm: GroupBatchNorm, smaller: int) -> Run:
    x = torch.randn(64, 64, 32 // min(smaller, 4), 32).contiguous(memory_format=torch.channels_last)
    x.requires_grad_()

    def normalise() -> Tensor:
        y = norm(x)
        norm.pending.clear()
        return y.square() * norm.weight[:, None, None]

    return with_gradients(normalise, x, norm.weight)


def running_statistics(smaller: int) -> Run:
    """As many batch norms as a ResNet-50 has."""
    norms = nn.Sequential(*(nn.BatchNorm1d(1024 // smaller) for _ in range(53)))
    set_groups(norms, 8)
    x = torch.randn(16, 1024 // smaller)
    with torch.no_grad():
        norms(x)
    kept = [list(norm.pending) for norm in norms]

    def update() -> Tensor:
        for norm, pending in zip(norms, kept, strict=True):
            norm.pending = list(pending)
        update_running_stats(norms)
        return torch.stack([norm.running_var.norm() for norm in norms])

    return update


def colours(on_gpu: bool, smaller: int) -> Run:
    """Two views as in MoCo v2; `on_gpu`: by the operations of a GPU, here on a CPU."""
    params = parameters("views=mocov2", f"views.random.size={224 // min(smaller, 4)}")
    (view,) = params.views.values()
    count = 16
    images = torch.randint(0, 256, (count, view.size, view.size, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    drawn = torch.tensor([draw_colour_params(view, RandomNumbers(0, 0, image, 0)) for image in range(count)])
    mean, std = transform(params.dataset).mean_and_std(torch.device("cpu"))
    form = augment_gpu.augment if on_gpu else augment
    return lambda: form(images, drawn, view, mean=mean, std=std).double().square().sum((0, 2, 3))


def training_step(method: str, smaller: int) -> Run:
    """Of a ResNet-18 on 32 px, without augmentation and clipping."""
    batch = 64 // min(smaller, 4)
    overrides = "backbone=resnet18_small", "views=small", "loss=infonce", f"optim.batch_size={batch}"
    params = parameters(*overrides, f"method={method}", "bn_group=8")
    task = build(params, machine.find("fp32", deterministic=False), batch).train()
    torch.set_num_threads(1)
    optimizer = optim.build(params.optim, [optim.Part(task)])
    views = [torch.randn(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last) for _ in range(2)]
    positions = torch.arange(batch)
    images = Batch(views, torch.zeros_like(positions), positions)

    def step() -> Tensor:
        optim.set_lr(optimizer, params.optim.peak_lr, 1.0)
        task.begin_step(0, 0.0)
        loss = task(images)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        task.after_step(0.0)
        return loss.detach()[None]

    return step


CASES: dict[str, Callable[[int], Run]] = {
    "log-partition, 4,096 against themselves": against_themselves,
    "log-partition, 4,096 against others": against_others,
    "log-partition, 256 against a queue of 65,536": against_a_queue,
    "log-partition, 4,096 in groups of 4": with_groups,
    "log-partition, 64 selected columns of 2,048": selected_columns,
    "sum of softplus, 4,096 against others": partial(sum_over_negatives, softplus_sum),
    "sum of log complements, 4,096 against others": partial(sum_over_negatives, log_complement_sum),
    "batch norm in 8 groups": norm_in_groups,
    "batch norm over two ranks": norm_over_ranks,
    "running statistics of 53 batch norms": running_statistics,
    "colours of 16 images, as on a CPU": partial(colours, False),
    "colours of 16 images, a GPU's operations": partial(colours, True),
    "step of ResNet-18, SimCLR": partial(training_step, "simclr"),
    "step of ResNet-18, MoCo v2": partial(training_step, "moco_v2"),
}

if __name__ == "__main__":
    main()
