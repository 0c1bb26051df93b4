"""pretrain: a method and a loss on unlabelled views, to models/backbone.safetensors."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import torch
from torch.optim import Optimizer

from cl.config import Params
from cl.config.rules import check_data, warnings
from cl.console.progress import Progress
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.transform import Transform
from cl.methods import BaseMethod, Setup
from cl.networks import backbones
from cl.networks.batch_norm import has_batch_norm
from cl.networks.compiled import compile_forward
from cl.networks.passes import encode_in_microbatches
from cl.pretraining import selection, view_sheet
from cl.pretraining.adaptation import Adaptation
from cl.pretraining.monitor import measure_epoch
from cl.pretraining.task import PretrainingTask
from cl.runtime import machine
from cl.runtime.distributed import rank, ranks
from cl.runtime.machine import Machine
from cl.runtime.registry import module_of
from cl.runtime.tensor_files import save_tensors
from cl.training import optim, start
from cl.training.checkpoints import optimizer_state, write_epochs
from cl.training.loop import train
from cl.training.start import Start
from pipeline.support import command, locations, outputs, provenance, runs

if TYPE_CHECKING:
    from cl.data.device_crops import DeviceTrainSet

TRIAL = "-S optim.epochs=1"


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
    warn(params, progress)
    params, bank, queries = locations.data(params, progress.say)
    check_data(params, bank, queries)
    weights = load_start(params)
    with runs.begin("pretrain") as run, command.results("pretrain") as results:
        results.notes |= run.notes | {"labelled": [len(bank.labelled), len(queries.labelled)]}
        checkpoints = run.checkpoints()
        task, optimizer, data = prepare(params, here, bank, weights)
        tested = adaptation(params, task, data, queries)
        for line in _introduction(params, data, queries, here):
            progress.say(line)
        if not locations.is_temporary_copy():
            progress.say(f"each epoch's row is added to {checkpoints.epochs}")
        progress.trial = f"{TRIAL} -S optim.least_steps=null" if params.optim.least_steps else TRIAL
        measure = monitoring(params, task, data, queries)
        kept = checkpoints.folder / locations.KEPT.name

        def each_epoch(epoch: int) -> dict[str, float]:
            if params.optim.keep_every and epoch % params.optim.keep_every == 0 and command.is_main_process():
                save_tensors(task.method.state_dict(), kept / f"{epoch}.safetensors")
            return measure(progress=progress, trained=epoch - data.plan.first_epoch)

        rows = train(
            task,
            cropped(params, data, here, progress.say),
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
            _save_models(
                task, optimizer, parent, data.transform, epochs=0 if unchanged else rows[-1]["epoch"]
            )


def warn(params: Params, progress: Progress) -> None:
    """Say what is unusual about the parameters, and what later stages will need."""
    if params.precision == "bf16" and machine.slow_bf16():
        progress.say("precision=bf16 is emulated on this hardware: correct, but many times slower than fp32")
    for sentence in (*warnings(params), *locations.missing(params.transfers)):
        progress.say(sentence)


def load_start(params: Params) -> Start:
    """The weights that `init` or `start_from` name.

    Raises:
        ValueError: models/start.safetensors contains other weights, or they do not fit the parameters.
    """
    weights = start.load(locations.START)
    weights.check(params.start_hashes, provenance.declared("pretrain")[1], locations.manifest_hash())
    return weights


def prepare(
    params: Params, here: Machine, bank: Reader, start: Start
) -> tuple[PretrainingTask, Optimizer, TrainSet]:
    """The task, its optimizer and the training images before the first step."""
    task = build(params, here, len(bank), start)
    built = optimizer(params, task)
    start.load_state(task.method, built)
    return task, built, train_set(params, bank, start.epochs)


def adaptation(params: Params, task: PretrainingTask, data: TrainSet, queries: Reader) -> Adaptation | None:
    """What compares the encoder with its start, if the parameters ask for the better one."""
    if params.hand_over == "trained":
        return None
    backbone, view = task.method.evaluated[0], next(iter(params.views.values()))
    return Adaptation(backbone, data.reader, queries, data.transform, view, task.machine)


def monitoring(
    params: Params, task: PretrainingTask, data: TrainSet, queries: Reader
) -> Callable[..., dict[str, float]]:
    """The measurements after each epoch; images that take little memory are read only once."""
    return partial(
        measure_epoch, task, params.optim.monitor, data.reader, queries, transform=data.transform, cache={}
    )


def build(params: Params, here: Machine, images: int, start: Start | None = None) -> PretrainingTask:
    """The method with its loss, initialised from the seed, on the device.

    Args:
        images: number of training images.
        start: weights to start from; the backbone's are loaded here.
    """
    _check_microbatches(params)
    torch.manual_seed(params.seed)
    backbone = backbones.build(params.backbone)
    if start:
        start.load_backbone(backbone, params.backbone)
    setup = Setup(backbone, params.temperature, params.patches, params.bn_groups, params.seed, images)
    method = module_of("methods", params.method.kind).Method(params.method, setup)
    if params.optim.compile:
        _compile_encoders(method)
    encode_in_microbatches(method, params.optim.microbatches)
    loss = module_of("losses", params.loss.kind)
    return here.place(PretrainingTask(method, loss, params.loss, params.method.scale, here))


def _check_microbatches(params: Params) -> None:
    microbatches = params.optim.microbatches
    if microbatches > 1 and params.bn_groups % (ranks() * microbatches):
        size = params.optim.batch_size / ranks() / microbatches
        raise ValueError(
            f"optim.microbatches={microbatches} on {ranks()} processes gives parts of size {size:g}, "
            f"expected a multiple of bn_group={params.bn_group}; choose fewer, or a smaller bn_group"
        )


def _compile_encoders(method: BaseMethod) -> None:
    compiler = os.environ.get("CXX", "g++")
    if not shutil.which(compiler):
        raise ValueError(
            f"optim.compile=true needs a C++ compiler, and {compiler} was not found; install one "
            "(in the image: build it with WITH_COMPILER=1), or choose optim.compile=false"
        )
    for network in method.modules():
        if hasattr(network, "fc_features"):
            compile_forward(network)


def train_set(params: Params, reader: Reader, first_epoch: int = 0) -> TrainSet:
    """The views of the training images, in the order of this process's steps."""
    plan = Plan(len(reader), params.optim.batch_size, params.seed, rank(), ranks(), first_epoch)
    transform = locations.transform(params.dataset, reader.manifest.levels)
    return TrainSet(reader, transform, list(params.views.values()), plan)


def cropped(
    params: Params, data: TrainSet, here: Machine, say: Callable[[str], None]
) -> "TrainSet | DeviceTrainSet":
    """The same batches, cropped where `optim.cropping` says."""
    if params.optim.cropping == "workers":
        return data
    from cl.data.device_crops import on_device  # late: torchvision takes seconds to import

    return on_device(data, here, say)


def optimizer(params: Params, task: PretrainingTask) -> Optimizer:
    """What updates the task's parameters."""
    fixed: Any = task.method.predictor if params.optim.predictor_lr == "fixed" else None
    scale, rate_1d = params.optim.backbone_lr_scale, params.optim.lr_scale_1d
    backbone = task.method.backbone
    parts = [optim.Part(task, rate_1d=rate_1d)]
    if scale != 1:
        parts = [
            optim.Part(backbone, scale, rate_1d=rate_1d),
            optim.Part(task, without=backbone, rate_1d=rate_1d),
        ]
    return optim.build(params.optim, parts, fixed)


def _images_left_out(data: TrainSet) -> int:
    """The images of an epoch's incomplete last batch."""
    return data.plan.samples % data.plan.batch_size


def _introduction(params: Params, data: TrainSet, queries: Reader, here: Machine) -> Iterator[str]:
    """What will be trained, and how it is measured meanwhile."""
    sizes = " + ".join(f"{view.count} x {view.size}" for view in params.views.values())
    yield (
        f"{params.method.kind} with {params.loss.kind}, {data.plan.samples} images "
        f"({_images_left_out(data)} left out of each epoch), views of {sizes} px, "
        f"evaluated at {params.dataset.crop} px, batch {params.optim.batch_size}, learning rate "
        f"{params.optim.lr():.4g}, on {data.plan.ranks} x {here.device.type} in {here.precision}"
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
        "effective_lr": params.optim.lr(),
        "negatives": task.negatives,
        "sizes": task.method.sizes,
        "images_left_out": _images_left_out(data),
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
