"""Does an encoder become better across sites if negatives come from the same site alone?

`python -W ignore -m benchmarks.sites FOLDER ... [--seed 0] [-S ...]`: each FOLDER has train/<class>/<image>
and val/<class>/<image>. Four fifths of the images of every other class, and a fifth of the others, are
blurred and tinted: the second site. A small network is trained with and without `dataset.within=site`.
"""

import csv
import itertools
import tempfile
from pathlib import Path

import click
import numpy as np
import torch
from PIL import Image, ImageFilter

from benchmarks.in_process import no_weights, shards, silent
from benchmarks.parameters import parameters
from cl.config import Params, for_few_images
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.features.extraction import extract
from cl.features.scores import knn_accuracy
from cl.runtime import machine
from cl.training.loop import train
from pipeline.support import pretraining

RECIPE = ("recipe=own/small", "dataset=table", "dataset.name=images", "dataset.labels=all")
SMALL = ("backbone.width=0.25", "dataset.resize=73", "dataset.crop=64", "views.random.size=64")
SHORT = ("optim.epochs=60", "optim.warmup_epochs=2")
WAYS = {"all negatives": (), "negatives of the site": ("dataset.within=site",)}
TINT, LIGHT = np.array([1.15, 1.0, 0.8], np.float32), 12
SHARES = 0.2, 0.8  # of the images of a class that are of the second site
K = 10


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--seed", "seeds", multiple=True, type=int, default=(0,), show_default=True)
@click.option("-S", "overrides", multiple=True, help="parameters other than the recipe's")
def main(folders: tuple[Path, ...], seeds: tuple[int, ...], overrides: tuple[str, ...]) -> None:
    """Print accuracies in percent: of kNN, of kNN by images of the other site, of the site itself by kNN."""
    print("| set | trained with | seed | kNN | across sites | site |")
    print("|---|---|---|---|---|---|")
    for folder in folders:
        with tempfile.TemporaryDirectory() as name:
            second = two_sites(folder, Path(name, "raw/images"))
            for seed, (way, within) in itertools.product(seeds, WAYS.items()):
                params = parameters(*RECIPE, *SMALL, *SHORT, *within, f"seed={seed}", *overrides)
                readers = shards(params, Path(name, "shards"), Path(name, "raw"))
                found = " | ".join(f"{value:.1f}" for value in accuracies(params, readers, second))
                print(f"| {folder.name} | {way} | {seed} | {found} |", flush=True)


def two_sites(source: Path, target: Path) -> set[str]:
    """Write the images with a table; the keys of those of the second site."""
    rng, second = np.random.default_rng(0), set()
    classes = {path.name: number % 2 for number, path in enumerate(sorted((source / "train").iterdir()))}
    target.mkdir(parents=True)
    with (target / "images.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "split", "label", "site"])
        for path in sorted(source.glob("*/*/*")):
            split, label = path.relative_to(source).parts[:2]
            changed = rng.random() < SHARES[classes[label]]
            name = Path(split, label, f"{path.stem}.png")
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            picture = Image.open(path).convert("RGB")
            (blurred_and_tinted(picture) if changed else picture).save(target / name)
            table.writerow([name, split, label, ("first", "second")[changed]])
            if changed:
                second.add(str(name.with_suffix("")).replace(".", "_"))
    return second


def blurred_and_tinted(picture: Image.Image) -> Image.Image:
    pixels = np.asarray(picture.filter(ImageFilter.GaussianBlur(1.0)), np.float32) * TINT + LIGHT
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def accuracies(params: Params, readers: list[Reader], second: set[str]) -> tuple[float, float, float]:
    """Train, and classify the validation images by the training images."""
    params, _ = for_few_images(params, *readers)
    here = machine.find("fp32", deterministic=False)
    task, optimizer, data = pretraining.prepare(params, here, readers[0], no_weights(params))
    train(task, data, params.optim, optimizer, progress=silent())
    backbone = task.method.evaluated[0]
    bank, queries = (extract(backbone, EvalSet(reader, data.transform), here).cpu() for reader in readers)
    classes, wanted = (torch.from_numpy(reader.labels(reader.labelled)) for reader in readers)
    sites, own = (torch.tensor([key.decode() in second for key in reader.keys]) for reader in readers)
    across = [
        knn_accuracy(
            bank[sites != site], classes[sites != site], queries[own == site], wanted[own == site], k=K
        )
        for site in (False, True)
    ]
    plain = knn_accuracy(bank, classes, queries, wanted, k=K)
    return plain, sum(across) / 2, knn_accuracy(bank, sites.long(), queries, own.long(), k=K)


if __name__ == "__main__":
    main()
