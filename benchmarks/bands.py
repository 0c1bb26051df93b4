"""Do 13 bands of 16 bits lose anything against the RGB that they were mixed from?

`python -W ignore -m benchmarks.bands [--mix spectrum] [--seed 0]`: CIFAR-10 in `fast/cifar10`'s regime,
with the first layer trained from random weights. Bands are files, shards and views of `own/bands`, without
quarter turns. A `spectrum` has overlapping sensitivities between blue and red; `random` weights are all
positive, so that the bands differ eight times less than the colours.
"""

import csv
import hashlib
import itertools
import math
import shutil
import tempfile
from pathlib import Path

import click
import numpy as np

from benchmarks.in_process import run, shards
from benchmarks.parameters import parameters
from cl.config import Params
from cl.data.reader import Reader

BANDS, STACK = 13, 5000
REGIME = ("recipe=fast/cifar10", "backbone.cosine_stem=false")
NO_COLOURS = ("views.random.jitter.p=0", "views.random.grayscale=0")
TABLE = (
    "dataset=table",
    "dataset.name=mixed",
    "dataset.channels=all",
    "dataset.resize=32",
    "dataset.crop=32",
)


def spectrum() -> np.ndarray:
    """(3, 13): Gaussian sensitivities; a column's weights have the sum 200."""
    places = np.linspace(-0.5, 2.5, BANDS)
    weights = np.exp(-2 * (np.arange(3)[:, None] - places) ** 2)
    return 200 * weights / weights.sum(0)


def random() -> np.ndarray:
    """(3, 13): uniform from 5 to 80."""
    return np.random.default_rng(0).uniform(5, 80, (3, BANDS))


MIXES = {"spectrum": spectrum, "random": random}


@click.command()
@click.option("--mix", "mixes", multiple=True, type=click.Choice(list(MIXES)), default=list(MIXES))
@click.option("--seed", "seeds", multiple=True, type=int, default=(0,), show_default=True)
@click.option("--first", type=int, help="only the first images of each split")
def main(mixes: tuple[str, ...], seeds: tuple[int, ...], first: int | None) -> None:
    """Print kNN accuracies in percent, of RGB and of each mixture."""
    print("| images | seed | kNN | seconds |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rgb = parameters(*REGIME, *([f"dataset.first={first}"] if first else []))
        colours = shards(rgb, folder / "rgb")
        cases = {"RGB": (rgb, colours)} | {mix: mixed(mix, colours, folder) for mix in mixes}
        for seed, (title, (params, readers)) in itertools.product(seeds, cases.items()):
            numbers, seconds = run(params.model_copy(update={"seed": seed}), readers)
            print(f"| {title} | {seed} | {numbers['knn_200_top1']:.2f} | {seconds:.0f} |", flush=True)


def mixed(mix: str, colours: list[Reader], folder: Path) -> tuple[Params, list[Reader]]:
    """Write the bands as stacks of images, and prepare shards of them.

    Raises:
        ValueError: the bands in the shards do not give back the colours.
    """
    weights, offsets = MIXES[mix](), np.linspace(0, 1000, BANDS)
    raw = folder / mix / "mixed"
    raw.mkdir(parents=True)
    rows = []
    for split, reader in zip(("train", "val"), colours, strict=True):
        for stack in np.array_split(np.arange(len(reader)), math.ceil(len(reader) / STACK)):
            name = f"{split}{stack[0]}"
            images = np.stack([reader.pixels(position) for position in stack])
            np.save(raw / f"{name}.npy", np.rint(images @ weights + offsets).astype(np.uint16))
            names = [f"{name}[{place}].npy" for place in range(len(stack))]
            rows += zip(names, reader.labels(stack), [split] * len(stack), strict=True)
    with (raw / "images.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    params = parameters(*REGIME, *TABLE, *NO_COLOURS)
    changes = (
        parameters("recipe=own/bands", "dataset.name=mixed", "views.random.bands.turn=0")
        .views["random"]
        .bands
    )
    readers = shards(params, folder / f"{mix}_shards", folder / mix)
    shutil.rmtree(raw)  # 1.6 GB
    inverse = np.linalg.pinv(weights)
    for before, after in zip(colours, readers, strict=True):
        recovered = [np.rint((after.pixels(i) - offsets) @ inverse) for i in range(len(after))]
        if sorted(map(content, recovered)) != sorted(content(before.pixels(i)) for i in range(len(before))):
            raise ValueError(f"{mix}: bands that do not give back the colours")
    view = params.views["random"].model_copy(update={"bands": changes})
    backbone = params.backbone.model_copy(update={"channels": BANDS})
    return params.model_copy(update={"views": {"random": view}, "backbone": backbone}), readers


def content(pixels: np.ndarray) -> str:
    return hashlib.md5(pixels.astype(np.uint8).tobytes()).hexdigest()


if __name__ == "__main__":
    main()
