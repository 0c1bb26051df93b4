"""How fast a recipe learns CIFAR-10 on this machine's CPU cores, beside the parts of other libraries.

`CL_RAW=... python -W ignore -m benchmarks.league RECIPE [--seed 0 --seed 1] [--by cl --by lightly] [-S ...]`
trains with the recipe, prints the seconds of training, on the clock and of the CPU in all processes, and
classifies all test images by their 200 nearest training images. The other sides have the recipe's network,
projector, precision, optimizer and number of steps, and their library's transform, loader and loss with the
recipe's settings. Equal steps are not equal accuracy: for the time to a common one, run each side with
several `-S optim.epochs=`. `--by solo-learn` needs `--source`, a clone of its repository;
`--by stable-pretraining` needs its package.
"""

import itertools
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import peers
from benchmarks.in_process import no_weights, shards, silent
from benchmarks.parameters import parameters
from benchmarks.peers import Parts
from cl.config import Params
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.features.extraction import Unit, extract_all
from cl.features.scores import knn_accuracy
from cl.runtime import machine
from cl.runtime.machine import Machine
from cl.training import optim
from cl.training.loop import train
from pipeline.support import command, locations, pretraining


@click.command()
@click.argument("recipe")
@click.option("--seed", "seeds", multiple=True, type=int, default=(0,), show_default=True)
@click.option("--by", "ways", multiple=True, type=click.Choice(["cl", *peers.PARTS]), default=("cl",))
@click.option("--source", type=click.Path(exists=True, path_type=Path), help="a clone of solo-learn")
@click.option("--workers", type=click.IntRange(min=1), help="data workers of every side; by default ours")
@click.option("-S", "overrides", multiple=True, help="parameters other than the recipe's")
@command.entry_point
def main(
    recipe: str,
    seeds: tuple[int, ...],
    ways: tuple[str, ...],
    source: Path | None,
    workers: int | None,
    overrides: tuple[str, ...],
) -> None:
    print("| trained by | seed | seconds | CPU seconds | kNN, backbone | kNN, embedding |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        readers = shards(parameters(f"recipe={recipe}", *overrides), Path(name))
        for seed, way in itertools.product(seeds, ways):
            params = parameters(f"recipe={recipe}", *overrides, f"seed={seed}")
            here = machine.find(params.precision, deterministic=False)
            here = replace(here, workers=workers or here.workers)
            task, optimizer, data = pretraining.prepare(params, here, readers[0], no_weights(params))
            backbone, projector = task.method.evaluated
            began, used = time.monotonic(), cpu_seconds()
            if way == "cl":
                batches = pretraining.cropped(params, data, here)
                train(task, batches, params.optim, optimizer, progress=silent())
            else:
                parts = peers.PARTS[way](params, here.workers, source)
                train_with(parts, backbone, projector, params, here)
                del parts  # ends its data workers, whose time then counts
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


def train_with(
    parts: Parts, backbone: nn.Module, projector: nn.Module, params: Params, here: Machine
) -> None:
    """Train both modules in place for the recipe's number of steps."""
    config = params.optim
    model = nn.Sequential(backbone, projector).train()
    optimizer = torch.optim.SGD(
        model.parameters(), config.peak_lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    steps = round(config.epochs * len(parts.batches))
    for step, views in enumerate(itertools.islice(repeated(parts), steps)):
        for group in optimizer.param_groups:
            group["lr"] = config.peak_lr * optim.lr_factor(config, step, steps, len(parts.batches))
        images = torch.cat(views).contiguous(memory_format=torch.channels_last)
        with here.autocast():
            embeddings = model(images)
        parts.loss([*embeddings.float().chunk(len(views))]).backward()
        optimizer.step()
        optimizer.zero_grad()


def repeated(parts: Parts) -> Iterator[list[Tensor]]:
    while True:
        yield from map(parts.views, parts.batches)


if __name__ == "__main__":
    main()
