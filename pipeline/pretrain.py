"""pretrain: a method and a loss on unlabelled views, to models/backbone.safetensors."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
from torch import Tensor
from torch.optim import Optimizer

from cl.config import Params
from cl.config.rules import check_data
from cl.config.rules.data import without_negatives
from cl.console.progress import Progress, Usage
from cl.console.wording import counted
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.networks.batch_norm import has_batch_norm
from cl.pretraining import collapse, view_sheet
from cl.pretraining.adaptation import Adaptation
from cl.pretraining.task import PretrainingTask
from cl.runtime.machine import Machine
from cl.runtime.tensor_files import save_tensors
from cl.training.checkpoints import Checkpoints, optimizer_state, write_epochs
from cl.training.loop import train
from cl.training.start import Start
from pipeline.support import command, locations, pretraining, provenance, runs, teacher

FEW = 200  # images; trained from scratch on fewer, an encoder may be no better than an untrained one


@click.command()
@command.entry_point
@command.on_all_devices
def main() -> None:
    """Pretrain the backbone as params.yaml says, from data/shards.

    An interrupted run continues from its checkpoints in CL_SCRATCH (default scratch/).
    Uses all visible GPUs, or CL_PROCESSES processes.
    """
    params = command.params()
    provenance.require_inputs("pretrain")
    progress = command.progress("pretrain")
    here = command.find_machine(params)
    pretraining.warn(params, progress)
    params, bank, queries = locations.data(params, progress.say)
    params = pretraining.decide_compile(params, here, len(bank))
    check_data(params, bank, queries)
    weights = pretraining.load_start(params)
    with runs.begin("pretrain") as run, command.results("pretrain") as results:
        results.notes |= run.notes | {"labelled": [len(bank.labelled), len(queries.labelled)]}
        results.notes |= {"precision": here.precision, "compiled": params.optim.compile}
        tested = adaptation(params, weights, bank, queries, here)
        weights.tensors.clear()  # each training loads its own
        if tested:
            progress.say(tested.expectation)
        for line in introduction(params, bank, queries):
            progress.say(line)
        arms, quality = pretraining.arms(params, queries), list[float]()

        def train_arm(number: int, progress: Progress = progress) -> _Trained:
            folder = f"arm{number + 1}" if len(arms) > 1 else ""
            return _trained(arms[number], bank, queries, here, run.checkpoints(folder), progress)

        if tested and len(arms) > 1:
            quality = _quality_of_arms(params, tested, train_arm, progress)
            uncounted = Progress(progress.title, progress.console, usage=Usage())
            trained = train_arm(quality.index(max(quality)), uncounted)  # restored from its checkpoints
        else:
            trained = train_arm(0)
        params, task, rows = trained.params, trained.task, trained.rows
        outcome = tested.judged(task.method.evaluated[0], params.seed) if tested else None
        kept_start = tested.start if tested and outcome and not outcome.is_better else None
        arm = params.model_dump(mode="json", include={"optim", "views"}) if quality else {}
        if command.is_main_process():
            _write_results(results, trained, unchanged=kept_start is not None)
            if outcome:
                results.notes |= {"adaptation": outcome.notes | {"arms": quality}, "arm": arm}
                progress.say(outcome.sentence)
            sizes = params.method.embedding_width, len(queries.evaluated(params.optim.monitor.queries))
            found = collapse.verdict(rows, *sizes, negatives=bool(task.negatives))
            results.notes |= {"state": found.state, "verdict": found.sentence}
            progress.say(found.sentence)
            parent = results.notes["parent"] = weights.summary(params.start_name)
            provenance.check_unchanged("pretrain")
            origins = {"parent": parent, "teacher": teacher.note(results, params, here), "arm": arm}
            _save_models(trained, origins, kept_start)


class _Trained(NamedTuple):
    """What a training leaves; `kept` is the folder of the method after earlier epochs, if any were kept."""

    params: Params
    task: PretrainingTask
    optimizer: Optimizer
    data: TrainSet
    rows: list[dict[str, Any]]
    kept: Path


def _quality_of_arms(
    params: Params, tested: Adaptation, train_arm: Callable[[int], _Trained], progress: Progress
) -> list[float]:
    """How well the training images are classified after each arm, in percent."""
    quality = []
    for number in range(1 + len(params.arms)):
        changes = f" with {json.dumps(params.arms[number - 1])}" if number else ""
        progress.say(f"arm {number + 1} of {1 + len(params.arms)}{changes}")
        try:
            task = train_arm(number).task
            quality.append(tested.quality(task.method.evaluated[0], params.seed))
            del task  # before the next one is built
        except FloatingPointError as error:  # in all processes; if every arm diverges, the first fails again
            progress.say(f"arm {number + 1} is left out: {error}")
            quality.append(0.0)
    best = quality.index(max(quality))
    numbers = " and ".join(f"{each:.1f} %" for each in quality)
    progress.say(f"{numbers} of the training images are classified correctly: arm {best + 1} is judged")
    return quality


def _trained(
    params: Params, bank: Reader, queries: Reader, here: Machine, checkpoints: Checkpoints, progress: Progress
) -> _Trained:
    """A whole training, from the newest checkpoint on."""
    keys, start = teacher.keys(params, here, bank, progress), pretraining.load_start(params)
    task, optimizer, data = pretraining.prepare(params, here, bank, start, keys)
    progress.say(_settings(params, data, here))
    if not locations.is_temporary_copy():
        progress.say(f"each epoch's row is added to {checkpoints.epochs}")
    measure = pretraining.monitoring(params, task, data, queries)
    kept = checkpoints.folder / locations.KEPT.name

    def each_epoch(epoch: int) -> dict[str, float]:
        pretraining.keep(params, task.method, epoch, kept)
        return measure(progress=progress, trained=epoch - data.plan.first_epoch)

    rows = train(
        task,
        pretraining.cropped(params, data, here),
        params.optim,
        optimizer,
        progress=progress,
        checkpoints=checkpoints,
        each_epoch=each_epoch,
    )
    return _Trained(params, task, optimizer, data, rows, kept)


def adaptation(
    params: Params, weights: Start, bank: Reader, queries: Reader, here: Machine
) -> Adaptation | None:
    """What compares the encoder with its start, if the parameters ask for the better one."""
    if params.hand_over == "trained":
        return None
    backbone = pretraining.build(params, here, len(bank), weights).method.evaluated[0]
    transform = locations.transform(params.dataset, bank)
    return Adaptation(backbone, bank, queries, transform, here, ungrouped=params.ungrouped)


def introduction(params: Params, bank: Reader, queries: Reader) -> Iterator[str]:
    """Whether the images suffice, and how the encoder is measured meanwhile."""
    if len(bank) < FEW and not params.start_name:
        yield (
            f"{counted(len(bank), 'images')} are too few to learn from, expected {FEW} or more; "
            "with a ready encoder, `cl embed --encoder torchvision:resnet50` and `cl classify` work at once"
        )
    if 2 * (alone := without_negatives(params, bank)) > len(bank):
        yield f"{alone} of {len(bank)} training images have no negatives: groups and values leave none"
    for name, baseline in params.baselines.items():
        if baseline.weights:
            yield (
                f"{baseline.weights} as published may be better than what is trained here: "
                f"`dvc repro baseline@{name}` measures it, without training"
            )
    if images := len(queries.labelled):
        monitor = params.optim.monitor
        few, many = min(monitor.queries, images), min(monitor.bank, len(bank.labelled))
        yield f"kNN after each epoch: {few} validation images, classified by {many} training images"


def _settings(params: Params, data: TrainSet, here: Machine) -> str:
    sizes = " + ".join(f"{view.count} x {view.size}" for view in params.views.values())
    return (
        f"{params.method.kind} with {params.loss.kind}, {data.plan.samples} images "
        f"({data.plan.samples % data.plan.batch_size} left out of each epoch), views of {sizes} px, "
        f"evaluated at {params.dataset.crop} px, batch {params.optim.batch_size}, learning rate "
        f"{params.optim.peak_lr:.4g}, on {data.plan.ranks} x {here.device.type} in {here.precision}"
        + (", compiled" if params.optim.compile else "")
    )


def _write_results(results: command.Results, trained: _Trained, *, unchanged: bool) -> None:
    """What the report shows of a training; if `unchanged`, its encoder is not handed over."""
    params, task, rows, plan = trained.params, trained.task, trained.rows, trained.data.plan
    write_epochs(rows, results.folder / "epochs.csv")
    view_sheet.draw(trained.data, results.folder / "views.png")
    results.notes |= trained.data.transform.shown
    if trained.kept.exists():
        ignored = shutil.ignore_patterns(f"{rows[-1]['epoch']}.safetensors")  # models/method.safetensors
        shutil.copytree(trained.kept, results.folder / trained.kept.name, ignore=ignored)
    results.metrics["pretrain_loss"] = rows[-1]["loss"]
    if "knn_top1" in rows[-1] and not unchanged:  # there are labels, and it is that of this encoder
        results.metrics["pretrain_knn_top1"] = rows[-1]["knn_top1"]
    results.notes |= {
        "backbone": params.backbone.title,
        "batch_norm": has_batch_norm(task.method),
        "batch_size": params.optim.batch_size,
        "epochs": params.optim.epochs,
        "bn_group": params.bn_group,
        "effective_lr": params.optim.peak_lr,
        "negatives": task.negatives,
        "sizes": task.method.sizes,
        "images_left_out": plan.samples % plan.batch_size,
        "images_per_second": round(sum(row["images_per_second"] for row in rows) / len(rows), 1),
    }


def _save_models(trained: _Trained, origins: dict[str, Any], start: dict[str, Tensor] | None) -> None:
    """Save the backbone for evaluations, the method for analyses, the optimizer for later runs.

    If the backbone that is handed over is the start, the method keeps the trained one, to which it belongs.
    """
    method, transform = trained.task.method, trained.data.transform
    metadata = {
        "transform": transform.model_dump_json(),
        "parameters": json.dumps(provenance.declared("pretrain")[1]),
        "data_manifest_sha256": locations.manifest_hash(),
        "epochs": str(trained.rows[-1]["epoch"]),
    }
    if transform.bands:  # the parameters do not tell how many
        metadata["network"] = trained.params.backbone.model_dump_json()
    metadata |= {name: json.dumps(origin) for name, origin in origins.items() if origin}
    of_backbone = metadata | ({"epochs": "0"} if start else {})
    save_tensors(start or method.evaluated[0].state_dict(), locations.BACKBONE, of_backbone)
    save_tensors(method.state_dict(), locations.METHOD, metadata)
    save_tensors(optimizer_state(method, trained.optimizer), locations.OPTIMIZER, metadata)


if __name__ == "__main__":
    main()
