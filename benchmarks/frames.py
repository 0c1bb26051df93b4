"""Are frames of one object nearer to each other if the run knows which frames show it?

`python -W ignore -m benchmarks.frames [--by positive] [--seed 0] [-S ...]`: a hundred objects are windows of
photographs, each filmed in twenty frames that move by a few pixels. Objects of every fifth photograph are
for validation. Each run trains without labels. It knows `nothing` of the frames, or frames of one object are
no negatives (`group`) or are positives (`positive`).
"""

import csv
import tempfile
import time
from pathlib import Path

import click
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from benchmarks.in_process import no_weights, shards, silent
from benchmarks.parameters import parameters
from cl.config import Params
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.features.extraction import extract
from cl.images import photographs
from cl.runtime import machine
from cl.training.loop import train
from pipeline.support import pretraining

IMAGES = ("dataset=table", "dataset.name=films", "dataset.labels=none")
SMALL = ("dataset.resize=32", "dataset.crop=32")
SHORT = ("optim.batch_size=256", "optim.epochs=20", "optim.warmup_epochs=2")
COLUMNS = {"nothing": "comment", "group": "group", "positive": "object"}
OBJECTS, FRAMES, EACH = 100, 20, 5
SIDE, WINDOW, MOTION = 48, 120, 10  # px


@click.command()
@click.option("--by", "ways", multiple=True, type=click.Choice(list(COLUMNS)), default=list(COLUMNS))
@click.option("--seed", "seeds", multiple=True, type=int, default=(0,), show_default=True)
@click.option("-S", "overrides", multiple=True, help="parameters other than the default's")
def main(ways: tuple[str, ...], seeds: tuple[int, ...], overrides: tuple[str, ...]) -> None:
    """Print the percentage of a frame's 19 nearest that show its object, for training and unseen objects."""
    print("| known | seed | training objects | unseen objects | seconds |")
    print("|---|---|---|---|---|")
    for way in ways:
        chosen = ["dataset.positive=object"] if way == "positive" else []
        with tempfile.TemporaryDirectory() as name:
            film(Path(name, "raw/films"), COLUMNS[way])
            params = parameters(*IMAGES, *SMALL, *SHORT, *chosen, *overrides)
            readers = shards(params, Path(name, "shards"), Path(name, "raw"))
            for seed in seeds:
                began = time.monotonic()
                seen, unseen = nearest_frames(params.model_copy(update={"seed": seed}), readers)
                seconds = time.monotonic() - began
                print(f"| {way} | {seed} | {seen:.1f} | {unseen:.1f} | {seconds:.0f} |", flush=True)


def film(folder: Path, column: str) -> None:
    """Write the frames, and a table whose column of this name has the objects."""
    rng = np.random.default_rng(0)
    pictures = [Image.open(path).convert("RGB") for path in photographs.files().values()]
    folder.mkdir(parents=True)
    with (folder / "images.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "split", column])
        for number in range(OBJECTS):
            picture = pictures[number % len(pictures)]
            x, y = (int(rng.integers(0, side - WINDOW)) for side in picture.size)
            moved = rng.integers(0, WINDOW - SIDE, 2)
            for frame, step in enumerate(rng.integers(-MOTION, MOTION + 1, (FRAMES, 2))):
                moved = np.clip(moved + step, 0, WINDOW - SIDE)
                left, top = x + int(moved[0]), y + int(moved[1])
                name = Path(str(number), f"{frame}.png")
                (folder / name).parent.mkdir(exist_ok=True)
                picture.crop((left, top, left + SIDE, top + SIDE)).save(folder / name)
                table.writerow([name, "val" if number % EACH == EACH - 1 else "train", number])


def nearest_frames(params: Params, readers: list[Reader]) -> tuple[float, float]:
    """Train, and count: training objects by the embeddings, unseen ones by the backbone's features."""
    here = machine.find("fp32", deterministic=False)
    task, optimizer, data = pretraining.prepare(params, here, readers[0], no_weights(params))
    train(task, data, params.optim, optimizer, progress=silent())
    method = task.method.eval()
    bank, queries = (extract(method.backbone, EvalSet(reader, data.transform), here) for reader in readers)
    with torch.no_grad():
        return of_the_object(method.projector(bank), readers[0]), of_the_object(queries, readers[1])


def of_the_object(rows: Tensor, reader: Reader) -> float:
    objects = np.array([key.decode().rpartition("/")[0] for key in reader.keys])
    rows = F.normalize(rows, dim=1)
    cosines = (rows @ rows.T).fill_diagonal_(-2)
    same = torch.from_numpy(objects[:, None] == objects).fill_diagonal_(False)
    return 100 * float(same.gather(1, cosines.topk(FRAMES - 1).indices).double().mean())


if __name__ == "__main__":
    main()
