"""pretrain: a method and a loss on unlabelled views, to models/backbone.safetensors."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import click
from torch.optim import Optimizer

from cl.config import Params
from cl.config.rules import check_data
from cl.console.wording import counted
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.transform import Transform
from cl.networks.batch_norm import has_batch_norm
from cl.pretraining import selection, view_sheet
from cl.pretraining.adaptation import Adaptation
from cl.pretraining.task import PretrainingTask
from cl.runtime.machine import Machine
from cl.runtime.tensor_files import save_tensors
from cl.training.checkpoints import optimizer_state, write_epochs
from cl.training.loop import train
from pipeline.support import command, locations, outputs, pretraining, provenance, runs

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
    outputs.require_inputs("pretrain")
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
        checkpoints = run.checkpoints()
        task, optimizer, data = pretraining.prepare(params, here, bank, weights)
        tested = adaptation(params, task, data, queries)
        if tested:
            progress.say(tested.expectation)
        for line in _introduction(params, data, queries, here):
            progress.say(line)
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
        outcome = tested.keep_better(params.seed) if tested else None
        unchanged = outcome is not None and not outcome.is_better
        if command.is_main_process():
            _write_results(results, rows, data, params, task)
            if kept.exists():
                last = "" if unchanged else f"{rows[-1]['epoch']}.safetensors"  # models/method.safetensors
                shutil.copytree(kept, results.folder / kept.name, ignore=shutil.ignore_patterns(last))
            if outcome:
                results.notes["adaptation"] = outcome.notes
                progress.say(outcome.sentence)
            if unchanged:  # the last epoch measured another encoder
                results.metrics.pop("pretrain_knn_top1", None)
            sizes = params.method.embedding_width, len(queries.evaluated(params.optim.monitor.queries))
            found = selection.verdict(rows, *sizes, negatives=bool(task.negatives))
            results.notes |= {"state": found.state, "verdict": found.sentence}
            progress.say(found.sentence)
            parent = results.notes["parent"] = weights.summary(params.start_name)
            provenance.check_unchanged("pretrain")
            _save_models(
                task, optimizer, parent, data.transform, epochs=0 if unchanged else rows[-1]["epoch"]
            )


def adaptation(params: Params, task: PretrainingTask, data: TrainSet, queries: Reader) -> Adaptation | None:
    """What compares the encoder with its start, if the parameters ask for the better one."""
    if params.hand_over == "trained":
        return None
    backbone, view = task.method.evaluated[0], next(iter(params.views.values()))
    return Adaptation(backbone, data.reader, queries, data.transform, view, task.machine)


def _introduction(params: Params, data: TrainSet, queries: Reader, here: Machine) -> Iterator[str]:
    """Whether the images suffice, what will be trained, and how it is measured meanwhile."""
    if len(data.reader) < FEW and not params.start_name:
        yield (
            f"{counted(len(data.reader), 'images')} are too few to learn from, expected {FEW} or more; "
            "with a ready encoder, `cl embed --encoder torchvision:resnet50` and `cl classify` work at once"
        )
    sizes = " + ".join(f"{view.count} x {view.size}" for view in params.views.values())
    yield (
        f"{params.method.kind} with {params.loss.kind}, {data.plan.samples} images "
        f"({data.plan.samples % data.plan.batch_size} left out of each epoch), views of {sizes} px, "
        f"evaluated at {params.dataset.crop} px, batch {params.optim.batch_size}, learning rate "
        f"{params.optim.peak_lr:.4g}, on {data.plan.ranks} x {here.device.type} in {here.precision}"
        + (", compiled" if params.optim.compile else "")
    )
    if images := len(queries.labelled):
        monitor = params.optim.monitor
        few, many = min(monitor.queries, images), min(monitor.bank, len(data.reader.labelled))
        yield f"kNN after each epoch: {few} validation images, classified by {many} training images"


def _write_results(
    results: command.Results,
    rows: list[dict[str, Any]],
    data: TrainSet,
    params: Params,
    task: PretrainingTask,
) -> None:
    write_epochs(rows, results.folder / "epochs.csv")
    view_sheet.draw(data, results.folder / "views.png")
    last = {"pretrain_loss": "loss", "pretrain_knn_top1": "knn_top1"}  # no kNN without labels
    results.metrics |= {name: rows[-1][column] for name, column in last.items() if column in rows[-1]}
    results.notes |= {
        "backbone": params.backbone.title,
        "batch_norm": has_batch_norm(task.method),
        "batch_size": params.optim.batch_size,
        "epochs": params.optim.epochs,
        "bn_group": params.bn_group,
        "effective_lr": params.optim.peak_lr,
        "negatives": task.negatives,
        "sizes": task.method.sizes,
        "images_left_out": data.plan.samples % data.plan.batch_size,
        "images_per_second": round(sum(row["images_per_second"] for row in rows) / len(rows), 1),
    }


def _save_models(
    task: PretrainingTask,
    optimizer: Optimizer,
    parent: dict[str, Any] | None,
    transform: Transform,
    *,
    epochs: int,
) -> None:
    """Save the backbone for evaluations, the method for analyses, the optimizer for later runs."""
    metadata = {
        "transform": transform.model_dump_json(),
        "parameters": json.dumps(provenance.declared("pretrain")[1]),
        "data_manifest_sha256": locations.manifest_hash(),
        "epochs": str(epochs),
    }
    if parent:
        metadata["parent"] = json.dumps(parent)
    save_tensors(task.method.evaluated[0].state_dict(), locations.BACKBONE, metadata)
    save_tensors(task.method.state_dict(), locations.METHOD, metadata)
    save_tensors(optimizer_state(task.method, optimizer), locations.OPTIMIZER, metadata)


if __name__ == "__main__":
    main()
