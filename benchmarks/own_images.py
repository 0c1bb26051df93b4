"""Two questions about own images, answered on the twenty embedded photographs with three seeds each.

`python -m benchmarks.own_images groups`: twenty frames of each of a hundred objects, with and without their
groups. Are the frames of an object closer to each other if they are never negatives?

`python -m benchmarks.own_images start CIFAR`: patches of the photographs, from scratch and from weights
pretrained on CIFAR-10 (CIFAR: its folder of python batches). Is the start worth its epochs?
"""

import csv
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image as Picture
from torch import Tensor, nn
from torchvision.datasets import CIFAR10

from benchmarks.in_process import shards, silent
from benchmarks.parameters import parameters
from cl.config import Params
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import EvalSet, TrainSet
from cl.features.extraction import extract
from cl.features.knn import classify, top1
from cl.hub import foreign
from cl.pretraining.task import PretrainingTask
from cl.runtime import machine
from cl.runtime.tensor_files import save_tensors
from cl.sources._shared import photographs
from cl.training import optim, start
from cl.training.loop import train
from pipeline.support.locations import transform
from pipeline.support.pretraining import build

SEEDS = (0, 1, 2)
OBJECTS, FRAMES = 100, 20
SIDE, WINDOW, MOTION = 48, 120, 10  # of a frame, of an object and of its motion between frames, pixels
FILM_EPOCHS = 20
EPOCHS_BEFORE, EPOCHS = 8, (2, 5)  # on CIFAR-10, and on the photographs


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        if sys.argv[1] == "groups":
            groups(Path(name))
        else:
            starts(Path(name), Path(sys.argv[2]))


def groups(work: Path) -> None:
    """Frames of the same object, with and without groups: neighbours and cosines."""
    films(work / "raw" / "films")
    sizes = ("dataset.resize=32", "dataset.crop=32", "optim.batch_size=256")
    params = parameters("dataset=table", "dataset.name=films", "dataset.labels=none", *sizes)
    print("| percent, or cosine | training objects, embedding | | unseen objects, features | |")
    print("|---|---|---|---|---|")
    print("| | same object among 19 nearest | its cosine | same object among 19 nearest | its cosine |")
    for name, column in (("without groups", "comment"), ("with groups", "group")):
        table = (work / "raw/films/all.csv").read_text().replace("object", column, 1)
        (work / "raw/films/images.csv").write_text(table)
        train_set, val = shards(params, work / column, work / "raw")
        measured = []
        for seed in SEEDS:
            method = pretrained(params, train_set, seed, FILM_EPOCHS).method.eval()
            with torch.no_grad():
                seen = method.projector(features_of(method.backbone, train_set, params))
                unseen = features_of(method.backbone, val, params)
            measured.append(closeness(seen, train_set) + closeness(unseen, val))
        print(row_of(name, measured), flush=True)


def films(folder: Path) -> None:
    """A window of a photograph is an object; its frames are crops that move within it. 80 objects train."""
    rng = np.random.default_rng(0)
    pictures = [Picture.open(path).convert("RGB") for path in photographs.files().values()]
    folder.mkdir(parents=True)
    with (folder / "all.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "split", "object"])
        for number in range(OBJECTS):
            picture = pictures[number % len(pictures)]
            x, y = (int(rng.integers(0, side - WINDOW)) for side in picture.size)
            left, top = rng.integers(0, WINDOW - SIDE, 2)
            for frame, step in enumerate(rng.integers(-MOTION, MOTION + 1, (FRAMES, 2))):
                left, top = np.clip(np.add((left, top), step), 0, WINDOW - SIDE)
                path = folder / f"{number}/{frame}.png"
                path.parent.mkdir(exist_ok=True)
                picture.crop((x + left, y + top, x + left + SIDE, y + top + SIDE)).save(path)
                split = "val" if number % 5 == 4 else "train"
                writer.writerow([f"{number}/{frame}.png", split, number])


def closeness(rows: Tensor, reader: Reader) -> list[float]:
    """Percent of the 19 nearest frames that show the same object, and the mean cosine of its frames."""
    objects = np.array([key.decode().rsplit("/", 1)[0] for key in reader.keys])
    rows = F.normalize(rows, dim=1)
    cosines = (rows @ rows.T).fill_diagonal_(-2)
    same = torch.from_numpy(objects[:, None] == objects).fill_diagonal_(False)
    nearest = cosines.topk(FRAMES - 1).indices
    return [100 * float(same.gather(1, nearest).double().mean()), float(cosines[same].mean())]


def starts(work: Path, cifar: Path) -> None:
    """Accuracy of kNN on the photographs: from scratch, from the weights, and the weights alone."""
    write_parent(work, cifar)
    params = parameters("optim.warmup_epochs=1")
    train_set, val = shards(params, work / "shards", work)
    parent = foreign.load(str(work / "parent.safetensors"))
    weights = start.from_backbone(parent.network, parent.config, {"name": "parent"})
    print("| epochs on the photographs | kNN top-1 from scratch, % | from the weights, % |\n|---|---|---|")
    for epochs in EPOCHS:
        scores = []
        for seed in SEEDS:
            tasks = [pretrained(params, train_set, seed, epochs, given) for given in (None, weights)]
            scores.append([knn(task.method.backbone, train_set, val, params) for task in tasks])
        print(row_of(str(epochs), scores), flush=True)
    print(f"| 0 | not run | {knn(parent.network, train_set, val, params):.1f} |")


def write_parent(work: Path, cifar: Path) -> None:
    """Write a checkpoint with torchvision's names, pretrained on 10,000 images of CIFAR-10 without labels."""
    folder = work / "cifar"
    folder.mkdir()
    for number, pixels in enumerate(CIFAR10(cifar).data[:10_000]):
        Picture.fromarray(pixels).save(folder / f"{number}.png")
    overrides = ("dataset=unlabelled", "dataset.name=cifar", "dataset.resize=32", "dataset.crop=32")
    params = parameters(*overrides)
    train_set, _ = shards(params, work / "parent shards", work)
    task = pretrained(params, train_set, 0, EPOCHS_BEFORE)
    metadata = {"network": params.backbone.model_dump_json()}
    save_tensors(task.method.backbone.state_dict(), work / "parent.safetensors", metadata)


def pretrained(
    params: Params, reader: Reader, seed: int, epochs: int, beginning: start.Start | None = None
) -> PretrainingTask:
    """The embedded experiment's method after some epochs."""
    params = params.model_copy(
        update={"seed": seed, "optim": params.optim.model_copy(update={"epochs": epochs})}
    )
    task = build(params, machine.find("fp32", deterministic=False), len(reader), beginning)
    plan = Plan(len(reader), params.optim.batch_size, seed)
    data = TrainSet(reader, transform(params.dataset), list(params.views.values()), plan)
    optimizer = optim.build(params.optim, [optim.Part(task)])
    train(task, data, params.optim, optimizer, progress=silent())
    return task


def features_of(network: nn.Module, reader: Reader, params: Params) -> Tensor:
    return extract(
        network, EvalSet(reader, transform(params.dataset)), machine.find("fp32", deterministic=False)
    )


def knn(network: nn.Module, bank: Reader, val: Reader, params: Params) -> float:
    """Top-1 in percent with k = 20."""
    rows, queries = (F.normalize(features_of(network, reader, params), dim=1) for reader in (bank, val))
    labels, truth = (torch.from_numpy(reader.labels()) for reader in (bank, val))
    classes = len(bank.manifest.classes)
    predicted = classify(queries, rows, labels, classes, k=[20], temperature=[0.07])
    return top1(predicted[0, 0], truth)


def row_of(name: str, measured: list[list[float]]) -> str:
    """A row of a table: mean and standard deviation over the seeds of each number."""
    cells = [f"{fmean(values):.3g} ± {stdev(values):.2g}" for values in zip(*measured, strict=True)]
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
