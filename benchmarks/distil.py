"""Does a student keep what its teacher knows? `own/distill` by several losses, and the student from scratch.

`python -W ignore -m benchmarks.distil TEACHER FOLDER ... [--seed 0] [--by soft_targets] [-S ...]`: each
FOLDER has train/<class>/<image> and val/<class>/<image>. From scratch, SimCLR with DCL trains for the
same time as the first loss.
"""

import itertools
import tempfile
import time
from pathlib import Path

import click
import torch
from torch import Tensor

from benchmarks.in_process import no_weights, shards, silent
from benchmarks.parameters import parameters
from cl.config import Params, for_few_images
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.encoders.encoder import Encoder, load
from cl.features.correctness import correctness
from cl.features.extraction import extract
from cl.networks.teacher import StoredTeacher
from cl.runtime import machine
from cl.statistics import MeasureDifference, judge
from cl.training.loop import train
from pipeline.support import pretraining
from pipeline.support.teacher import FrozenTeacher

LOSSES = ("soft_targets", "infonce", "dcl", "cosine")
SCRATCH = ("recipe=own/small", "backbone.width=0.25", "optim.batch_size=64")
SIZE = ("dataset.resize=110", "dataset.crop=96", "views.random.size=96")
HERE = machine.find("fp32", deterministic=False)


@click.command()
@click.argument("teacher", type=click.Path(exists=True, path_type=Path))
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--seed", "seeds", multiple=True, type=int, default=(0,), show_default=True)
@click.option("--by", "losses", multiple=True, type=click.Choice(LOSSES), default=LOSSES)
@click.option("-S", "overrides", multiple=True, help="parameters other than the recipe's")
def main(
    teacher: Path,
    folders: tuple[Path, ...],
    seeds: tuple[int, ...],
    losses: tuple[str, ...],
    overrides: tuple[str, ...],
) -> None:
    """Print a table; the teacher is in front of each student."""
    print("| set | trained by | seed | kNN | linear | mean | seconds |")
    print("|---|---|---|---|---|---|---|")
    encoder = load(str(teacher))
    for folder, seed in itertools.product(folders, seeds):
        data = ("dataset=folder", f"dataset.name={folder.absolute()}", "evaluation=[retrieval]")
        common = (*data, f"seed={seed}", *overrides)
        with tempfile.TemporaryDirectory() as name:
            recipe = ("recipe=own/distill", f"teacher={teacher.absolute()}", *common)
            readers = shards(parameters(*recipe), Path(name, "shards"))
            known = [of_teacher(encoder, reader) for reader in readers]
            limit = None
            for loss in (*losses, None):
                chosen = (*SCRATCH, *SIZE, *common) if loss is None else (*recipe, f"loss={loss}")
                found, seconds = trained(parameters(*chosen), readers, known, limit if loss is None else None)
                limit = limit or seconds
                print(row(folder.name, loss or "from scratch", seed, found, seconds), flush=True)


def of_teacher(encoder: Encoder, reader: Reader) -> Tensor:
    """(N, D): its unit features of all images."""
    return FrozenTeacher(encoder.network, encoder.transform, {}).features(
        EvalSet(reader, encoder.transform), HERE, silent().count
    )


def trained(
    params: Params, readers: list[Reader], known: list[Tensor], limit: float | None
) -> tuple[list[MeasureDifference], float]:
    """kNN, logistic regression and the mean of teacher and student, and the seconds of training.

    Args:
        known: the teacher's features of both splits.
        limit: seconds that the training should take; None: the epochs of the parameters.
    """
    params, _ = for_few_images(params, *readers)
    if limit:
        one, six = (trained(with_epochs(params, epochs), readers, known, None)[1] for epochs in (1, 6))
        params = with_epochs(params, max(1, round(1 + 5 * (limit - one) / (six - one))))
    teacher = None if params.teacher is None else StoredTeacher(known[0])
    torch.manual_seed(params.seed)
    task, optimizer, data = pretraining.prepare(params, HERE, readers[0], no_weights(params), teacher)
    began = time.monotonic()
    train(task, data, params.optim, optimizer, progress=silent())
    seconds = time.monotonic() - began
    backbone = task.method.evaluated[0]
    own = [extract(backbone, EvalSet(reader, data.transform), HERE) for reader in readers]
    labels = [torch.from_numpy(reader.labels(reader.labelled)) for reader in readers]
    pairs = [tuple(zip(known, own, strict=True))[split] for split in (0, 1)]
    scores = correctness(pairs[0], labels[0], pairs[1], labels[1], seed=params.seed)
    comparison = judge(scores, None, seed=params.seed)
    return [*comparison.rows[:2], comparison.overall], seconds


def with_epochs(params: Params, epochs: int) -> Params:
    warmup = min(params.optim.warmup_epochs, epochs / 10)
    changed = {"epochs": epochs, "warmup_epochs": warmup, "least_steps": None}
    return params.model_copy(update={"optim": params.optim.model_copy(update=changed)})


def row(name: str, way: str, seed: int, found: list[MeasureDifference], seconds: float) -> str:
    """Accuracies of teacher and student in percent, and the difference with its paired interval."""
    cells = [
        f"{each.a:.1f} -> {each.b:.1f} ({each.difference:+.1f} [{each.low:.1f}, {each.high:.1f}])"
        for each in found
    ]
    return f"| {name} | {way} | {seed} | {' | '.join(cells)} | {seconds:.0f} |"


if __name__ == "__main__":
    main()
