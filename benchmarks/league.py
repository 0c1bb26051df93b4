"""How fast a recipe learns CIFAR-10 on this machine's CPU cores, beside the same training of lightly's parts.

`CL_RAW=... python -W ignore -m benchmarks.league RECIPE [--seed 0 --seed 1] [--by cl --by lightly] [-S ...]`
trains with the recipe, prints the seconds of training, on the clock and of the CPU in all processes, and
classifies all test images by their 200 nearest training images. lightly's side has the recipe's network,
projector, precision, optimizer and number of steps, and lightly's transform and loss with the recipe's
settings; torchvision reads the images.
"""

import itertools
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click
import numpy as np
import torch
from lightly.loss import DCLLoss, NTXentLoss
from lightly.transforms.multi_view_transform import MultiViewTransform
from lightly.transforms.simclr_transform import SimCLRViewTransform
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import CIFAR10

from benchmarks.in_process import shards, silent
from benchmarks.parameters import parameters
from cl.config import Params
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.features.extraction import Unit, extract_all
from cl.features.scores import knn_accuracy
from cl.methods._shared.pairs import pairs
from cl.runtime import machine
from cl.runtime.machine import Machine
from cl.training import optim
from cl.training.loop import train
from cl.training.start import Start
from pipeline.support import locations, pretraining

LOSSES = {"dcl": DCLLoss, "infonce": NTXentLoss}


@click.command()
@click.argument("recipe")
@click.option("--seed", "seeds", multiple=True, type=int, default=(0,), show_default=True)
@click.option("--by", "ways", multiple=True, type=click.Choice(["cl", "lightly"]), default=("cl",))
@click.option("-S", "overrides", multiple=True, help="parameters other than the recipe's")
def main(recipe: str, seeds: tuple[int, ...], ways: tuple[str, ...], overrides: tuple[str, ...]) -> None:
    print("| trained by | seed | seconds | CPU seconds | kNN, backbone | kNN, embedding |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        readers = shards(parameters(f"recipe={recipe}", *overrides), Path(name))
        for seed, way in itertools.product(seeds, ways):
            params = parameters(f"recipe={recipe}", *overrides, f"seed={seed}")
            here = machine.find(params.precision, deterministic=False)
            task, optimizer, data = pretraining.prepare(params, here, readers[0], Start())
            backbone, projector = task.method.evaluated
            began, used = time.monotonic(), cpu_seconds()
            if way == "cl":
                train(task, data, params.optim, optimizer, progress=silent())
            else:
                data_set = partial(CIFAR10, os.fspath(locations.raw()))
                train_with_lightly(backbone, projector, params, here, data_set)
            times = f"{time.monotonic() - began:.0f} | {cpu_seconds() - used:.0f}"
            accuracies = nearest(Unit(backbone, [projector]), readers, params, here)
            figures = " | ".join(f"{accuracy:.1f}" for accuracy in accuracies)
            print(f"| {way} | {seed} | {times} | {figures} |", flush=True)


def cpu_seconds() -> float:
    """Seconds of the CPU that this process and its finished data workers have used."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def nearest(encoder: nn.Module, readers: list[Reader], params: Params, here: Machine) -> list[float]:
    """Percent of the test images that their 200 nearest training images classify rightly, for each output."""
    transform = locations.transform(params.dataset)
    sets = [EvalSet(reader, transform) for reader in readers]
    outputs = [extract_all(encoder, each, here) for each in sets]
    labels = [reader.labels(np.arange(len(reader))) for reader in readers]
    return [
        knn_accuracy(bank, labels[0], queries, labels[1], k=200, temperature=0.07)
        for bank, queries in zip(*outputs, strict=True)
    ]


def train_with_lightly(
    backbone: nn.Module,
    projector: nn.Module,
    params: Params,
    here: Machine,
    data_set: Callable[..., Dataset],
) -> None:
    """Train both modules in place, with every view against the first two as our SimCLR does.

    data_set: makes one of torchvision's, with a `transform`.
    """
    config, view = params.optim, params.views["random"]
    batches = loader(params, here, data_set)
    model = nn.Sequential(backbone, projector).train()
    optimizer = torch.optim.SGD(
        model.parameters(), config.peak_lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    criterion = LOSSES[params.loss.kind](temperature=params.temperature)
    steps = round(config.epochs * len(batches))
    for step, views in enumerate(itertools.islice(repeated(batches), steps)):
        for group in optimizer.param_groups:
            group["lr"] = config.peak_lr * optim.lr_factor(config, step, steps, len(batches))
        images = torch.cat(views).contiguous(memory_format=torch.channels_last)
        with here.autocast():
            embeddings = model(images)
        each = embeddings.float().chunk(view.count)
        chosen = list(pairs(view.count)) if view.count > 2 else [(0, 1)]
        losses = [criterion(each[a], each[b]) for a, b in chosen]
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def loader(params: Params, here: Machine, data_set: Callable[..., Dataset]) -> DataLoader:
    """Batches of lightly's views, a list of tensors (N, 3, S, S)."""
    view, jitter = params.views["random"], params.views["random"].jitter
    transform = SimCLRViewTransform(
        input_size=view.size,
        cj_prob=jitter.p,
        cj_strength=1.0,
        cj_bright=jitter.brightness,
        cj_contrast=jitter.contrast,
        cj_sat=jitter.saturation,
        cj_hue=jitter.hue,
        min_scale=view.area[0],
        random_gray_scale=view.grayscale,
        gaussian_blur=view.blur.p,
        normalize={"mean": [*params.dataset.mean], "std": [*params.dataset.std]},
    )
    return DataLoader(
        data_set(transform=MultiViewTransform([transform] * view.count)),
        params.optim.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=here.workers,
        collate_fn=views_of,
    )


def views_of(samples: list[tuple[list[Tensor], int]]) -> list[Tensor]:
    """The views of a batch without its labels."""
    return [torch.stack(view) for view in zip(*(views for views, _ in samples), strict=True)]


def repeated(batches: DataLoader) -> Iterator[list[Tensor]]:
    while True:
        yield from batches


if __name__ == "__main__":
    main()
