"""Is an encoder better after it has been trained on other images? `own/adapt` beside other ways of training.

`python -W ignore -m benchmarks.adapt WEIGHTS FOLDER ... [--seed 0 --seed 1] [--by own/adapt] [-S ...]`: each
FOLDER has train/<class>/<image> and val/<class>/<image>. For every seed, FOLDER and way of training: the
encoder of WEIGHTS and the trained one, compared on the validation images.
"""

import itertools
import tempfile
import time
from functools import partial
from operator import itemgetter
from pathlib import Path

import click
from torch.optim import Optimizer
from torchvision.datasets import ImageFolder

from benchmarks import peers
from benchmarks.in_process import shards, silent
from benchmarks.league import train_with
from benchmarks.parameters import parameters
from cl.config import Params, for_few_images
from cl.data.sets import TrainSet
from cl.encoders import foreign
from cl.networks import backbones
from cl.pretraining.adaptation import Outcome
from cl.pretraining.task import PretrainingTask
from cl.runtime import machine
from cl.training import optim, start
from cl.training.loop import train
from cl.training.start import Start
from cl.training.tasks import SupervisedTask, classifier
from pipeline import pretrain
from pipeline.support import pretraining

SIZE = ("dataset.resize=110", "dataset.crop=96", "views.random.size=96")
SMALL = ("recipe=own/small", "hand_over=better", "optim.epochs=15", *SIZE)
SCRATCH = "random weights"  # of the same network
LIGHTLY = "lightly's parts"  # its transform, loss and loop, with the recipe's start, settings and steps
LABELS = "all labels"  # cross-entropy instead of DCL
WAYS = {
    "own/adapt": ("recipe=own/adapt",),
    "init, default rate": SMALL,
    SCRATCH: SMALL,
    LIGHTLY: ("recipe=own/adapt", "arms=[]"),
    LABELS: ("recipe=own/adapt", "arms=[]"),
}


@click.command()
@click.argument("weights", type=click.Path(exists=True, path_type=Path))
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--seed", "seeds", multiple=True, type=int, default=(0,), show_default=True)
@click.option("--by", "ways", multiple=True, type=click.Choice(list(WAYS)), default=list(WAYS))
@click.option("-S", "overrides", multiple=True, help="parameters other than the recipe's")
def main(
    weights: Path,
    folders: tuple[Path, ...],
    seeds: tuple[int, ...],
    ways: tuple[str, ...],
    overrides: tuple[str, ...],
) -> None:
    print(
        "| set | trained by | seed | kNN | linear | mean | difference of the mean | handed over | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for seed, folder, way in itertools.product(seeds, folders, ways):
        data = ("dataset=folder", f"dataset.name={folder.absolute()}", "evaluation=[retrieval]")
        params = parameters(*WAYS[way], *data, f"init={weights.absolute()}", f"seed={seed}", *overrides)
        began = time.monotonic()
        outcome = trained(params, way, folder)
        print(row(folder.name, way, seed, outcome, time.monotonic() - began), flush=True)


def trained(params: Params, way: str, folder: Path) -> Outcome:
    """What a run with these parameters finds, if it trains in this way on the images in `folder`."""
    here = machine.find(params.precision, deterministic=False)
    with tempfile.TemporaryDirectory() as name:
        bank, queries = shards(params, Path(name, "shards"))
        params, _ = for_few_images(params, bank, queries)
        assert params.init
        encoder = foreign.load(params.init.name, exact=False)

        def beginning() -> Start:
            return start.from_backbone(encoder.network, encoder.config, {})

        adaptation = pretrain.adaptation(params, beginning(), bank, queries, here)
        assert adaptation
        found = []
        for arm in pretraining.arms(params, queries):
            task, optimizer, data = pretraining.prepare(arm, here, bank, beginning())
            train_by(way, arm, folder, task, optimizer, data)
            backbone = task.method.evaluated[0]
            found.append((adaptation.quality(backbone, params.seed), backbone))
        _, best = max(found, key=itemgetter(0))
        return adaptation.judged(best, params.seed)


def train_by(
    way: str, params: Params, folder: Path, task: PretrainingTask, optimizer: Optimizer, data: TrainSet
) -> None:
    """Train the task's backbone in this way."""
    here, (backbone, projector) = task.machine, task.method.evaluated
    if way == SCRATCH:
        backbone.load_state_dict(backbones.build(params.backbone).state_dict())
    if way == LIGHTLY:
        parts = peers.lightly(params, here.workers, None, partial(ImageFolder, folder / "train"))
        train_with(parts, backbone, projector, params, here)
    elif way == LABELS:
        head = classifier(backbone.fc_features, len(data.reader.manifest.classes))
        labelled = here.place(SupervisedTask(backbone, head, here, seed=params.seed))
        built = optim.build(params.optim, [optim.Part(labelled)])
        train(labelled, data, params.optim, built, progress=silent())
    else:
        train(task, data, params.optim, optimizer, progress=silent())


def row(name: str, way: str, seed: int, outcome: Outcome, seconds: float) -> str:
    """Accuracies before and after in percent, and the difference of their mean with its interval."""
    assert outcome.comparison
    knn, linear, *_ = outcome.comparison.rows
    mean = outcome.comparison.overall
    pairs = [f"{each.a:.1f} -> {each.b:.1f}" for each in (knn, linear, mean)]
    interval = f"{mean.difference:+.1f} [{mean.low:.1f}, {mean.high:.1f}]"
    handed_over = "adapted" if outcome.is_better else "start"
    cells = [name, way, str(seed), *pairs, interval, handed_over, f"{seconds:.0f}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
