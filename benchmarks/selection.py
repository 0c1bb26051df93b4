"""Which label-free measure picks the epoch whose features are best by kNN, over many short pretrainings.

`python -m benchmarks.selection FOLDER [RUN ...]` trains the runs (by default all) whose log FOLDER lacks, on
reduced `photos`, then compares the rules on all logs there. Labels serve kNN alone.
"""

import csv
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.parameters import parameters
from cl.config import Params
from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.evaluations import Context, Encoder
from cl.evaluations.retrieval import evaluate
from cl.features.extraction import extract
from cl.pretraining import collapse
from cl.pretraining.collapse import FEWEST
from cl.pretraining.monitor import measure_epoch
from cl.pretraining.selection import verdict
from cl.runtime import machine
from cl.runtime.cores import cores
from cl.runtime.registry import module_of
from cl.shards import writing
from cl.shards.team import Team
from cl.training.checkpoints import Checkpoints
from cl.training.loop import train
from cl.training.start import Start
from pipeline.support.locations import transform
from pipeline.support.pretraining import prepare

if TYPE_CHECKING:
    from cl.pretraining.task import PretrainingTask

REDUCED = "dataset.train_patches=25 dataset.val_patches=40 optim.batch_size=50 optim.epochs=15"
REDUCED += " evaluation=[retrieval] transfer=[] analysis=[] baseline=[]"
REDUCED += " optim.monitor.bank=500 optim.monitor.queries=800"
FEW = "dataset.train_patches=5 optim.batch_size=25 optim.epochs=30"  # images to learn by heart
RUNS = {
    "simclr-dcl": "optim.epochs=20",
    "simclr-infonce-constant": "loss=infonce optim.schedule=constant",
    "simclr-rate-too-large": "optim.base_lr=10 optim.warmup_epochs=0",
    "simclr-few-images": f"{FEW} optim.schedule=constant",
    "moco-infonce": "method=moco_v2 bn_group=25 loss=infonce",
    "byol": "method=byol optim.epochs=20",
    "byol-no-momentum": "method=byol method.ema.momentum=0 method.ema.schedule=constant optim.base_lr=2",
    "simsiam": "method=simsiam",
    "simsiam-rate-too-large": "method=simsiam method.projector.last_norm=none optim.base_lr=10 "
    "optim.warmup_epochs=0",
    "nnclr-infonce": "method=nnclr loss=infonce",
    "fast-moco": "method=fast_moco loss=infonce",
}

MEASURES = {  # with the sign of a good one
    "effective_rank": 1,
    "features_rank": 1,
    "features_rank_raw": 1,
    "uniformity": -1,
    "features_uniformity": -1,
    "embedding_std": 1,
    "alignment": -1,
    "features_alpha": -1,
    "hit1": 1,
    "loss": -1,
}
SMOOTH = 3  # epochs
AHEAD = 1.5  # how long a run goes on after a verdict to see what it was worth, times its length until then
Rows = list[dict[str, float]]


def main() -> None:
    folder, *chosen = sys.argv[1:]
    logs = Path(folder) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for name in chosen or RUNS:
        if not (logs / f"{name}.csv").exists():
            write(logs / f"{name}.csv", pretrain(name, Path(folder)))
    if not chosen:
        rows = {name: read(logs / f"{name}.csv") for name in RUNS}
        print_runs(rows)
        print_rules(rows)
        print_forecasts(rows)


def pretrain(name: str, folder: Path) -> Rows:
    """The epochs' rows of one run, as `pipeline.pretrain` logs them, with the measures of the features."""
    params = parameters(*REDUCED.split(), *RUNS[name].split())
    whole = parameters(*REDUCED.split())
    data, bank, val = (
        reader(p, split, folder) for p, split in ((params, "train"), (whole, "train"), (whole, "val"))
    )
    here, progress = machine.find("fp32", deterministic=False), Progress(name)
    task, optimizer, training = prepare(params, here, data, Start())

    def measured(epoch: int) -> dict[str, float]:
        settings, view = params.optim.monitor, training.transform
        row = measure_epoch(task, settings, bank, val, transform=view, progress=progress)
        return row | of_features(task, params, val, folder)

    return train(task, training, params.optim, optimizer, progress=progress, each_epoch=measured)


def reader(params: Params, split: str, folder: Path) -> Reader:
    source = params.dataset
    shards = folder / f"shards-{source.model_dump()['train_patches']}"
    if not shards.exists():
        splits = module_of("sources", source.kind).splits(source, folder / "raw")
        writing.write(splits, source.kind, source, shards, Team(cores()))
    return Reader(shards, split)


def of_features(task: "PretrainingTask", params: Params, val: Reader, folder: Path) -> dict[str, float]:
    """RankMe (of unit rows, and as they are), uniformity, alpha-ReQ and retrieval by the backbone."""
    eval_view = transform(params.dataset)
    features = extract(task.method.backbone, EvalSet(val, eval_view), task.machine)
    unit = collapse.measures(F.normalize(features, dim=1))
    here = replace(task.machine, workers=0)  # starting a data worker takes longer than reading the images
    context = Context(
        encoder=Encoder(task.method.backbone),
        train=val,
        val=val,
        transform=eval_view,
        seed=0,
        machine=here,
        progress=Progress(""),
        out=folder,
        checkpoints=lambda name: Checkpoints(folder / name),
    )
    return {
        "features_uniformity": unit["uniformity"],
        "features_rank": unit["effective_rank"],
        "features_rank_raw": collapse.measures(features)["effective_rank"],
        "features_alpha": alpha(features),
        "hit1": evaluate(params.evaluations["retrieval"], context)["hit1"],
    }


def alpha(features: Tensor) -> float:
    """The exponent of the decay of the covariance's eigenvalues: lambda_i ~ i^-alpha (alpha-ReQ, 2022)."""
    values = torch.linalg.svdvals(features - features.mean(0)).double()[:100].square()
    places = torch.arange(1, len(values) + 1).double().log()
    x, y = places - places.mean(), values.log() - values.log().mean()
    return -float((x * y).sum() / (x * x).sum())


def write(path: Path, rows: Rows) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({key: round(value, 6) for key, value in row.items()} for row in rows)


def read(path: Path) -> Rows:
    with path.open(newline="") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def print_runs(logs: dict[str, Rows]) -> None:
    """Each run with its best epoch by kNN, its last epoch, and what the rule says."""
    print("| run | settings | epochs | best epoch | its kNN | kNN of the last | regret | verdict |")
    print("|---|---|---|---|---|---|---|---|")
    for name, rows in logs.items():
        accuracies = [row["knn_top1"] for row in rows]
        best, last = max(accuracies), accuracies[-1]
        place = f"{len(rows)} | {accuracies.index(best) + 1} | {best:.1f} | {last:.1f} | {best - last:.1f}"
        print(f"| {name} | `{RUNS[name]}` | {place} | {judged(name, rows)} |")


def width_of(name: str) -> int:
    """The width of a run's embeddings."""
    return parameters(*REDUCED.split(), *RUNS[name].split()).method.projector.out


def judged(name: str, rows: Rows) -> str:
    """The verdict on some epochs of a run; after a collapse with its first epoch."""
    found = verdict(rows, width_of(name))
    return f"{found.state} from {found.epoch} on" if found.state == "collapsed" else found.state


def print_rules(logs: dict[str, Rows]) -> None:
    """The regret of each rule: kNN of the best epoch minus that of the epoch picked, in points."""
    print("\n| rule | mean regret | largest | runs in which it is better / worse than the last epoch |")
    print("|---|---|---|---|")
    last = regrets(logs, lambda rows: len(rows) - 1)
    print(f"| last epoch | {fmean(last):.1f} | {max(last):.1f} | |")
    for measure, sign in MEASURES.items():
        for width in (1, SMOOTH):
            found = regrets(logs, partial(best_epoch, measure=measure, sign=sign, width=width))
            better = sum(ours < theirs for ours, theirs in zip(found, last, strict=True))
            worse = sum(ours > theirs for ours, theirs in zip(found, last, strict=True))
            title = f"{'highest' if sign > 0 else 'lowest'} {measure}{', smoothed' * (width > 1)}"
            print(f"| {title} | {fmean(found):.1f} | {max(found):.1f} | {better} / {worse} |")


def regrets(logs: dict[str, Rows], rule: Callable[[Rows], int]) -> list[float]:
    """For each run, with `rule` the index of the row to pick."""
    accuracies = {name: [row["knn_top1"] for row in rows] for name, rows in logs.items()}
    return [max(accuracies[name]) - accuracies[name][rule(rows)] for name, rows in logs.items()]


def best_epoch(rows: Rows, measure: str, sign: int, width: int) -> int:
    """The row with the highest (sign 1) or lowest (sign -1) mean of `width` rows; the latest such."""
    values = means([sign * row[measure] for row in rows], width)
    return max(range(len(values)), key=lambda place: (values[place], place))


def means(values: list[float], width: int) -> list[float]:
    """The mean of each value and those before it, `width` in all."""
    return [fmean(values[max(0, place - width + 1) : place + 1]) for place in range(len(values))]


def print_forecasts(logs: dict[str, Rows]) -> None:
    """What kNN, smoothed, gained after every epoch of a run by the verdict that was due there."""
    gains: dict[str, list[float]] = {}
    for name, rows in logs.items():
        width = width_of(name)
        accuracies = means([row["knn_top1"] for row in rows], SMOOTH)
        for done in range(FEWEST, round(len(rows) / AHEAD) + 1):
            gain = accuracies[round(AHEAD * done) - 1] - accuracies[done - 1]
            gains.setdefault(verdict(rows[:done], width).state, []).append(gain)
    print("\n| verdict | epochs | mean gain of kNN later | share of gains above 0 |")
    print("|---|---|---|---|")
    for state, found in gains.items():
        share = fmean(gain > 0 for gain in found)
        print(f"| {state} | {len(found)} | {fmean(found):+.1f} | {share:.0%} |")


if __name__ == "__main__":
    main()
