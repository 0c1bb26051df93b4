"""pretrain: a method and a loss on unlabelled views, to models/backbone.safetensors."""

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline import command, launch, locations, provenance

if TYPE_CHECKING:
    from cl.config import Params
    from cl.pretraining.task import PretrainingTask
    from cl.runtime.machine import Machine


@click.command()
@command.entry_point
@launch.on_all_devices
def main() -> None:
    """Pretrain the backbone as params.yaml says, from data/shards.

    A run that was stopped or killed continues by itself: checkpoints lie in CL_SCRATCH (default scratch/). All visible GPUs
    are used, or CL_PROCESSES processes.
    """
    params = command.params()
    from cl.data.order import Plan
    from cl.data.sets import TrainSet
    from cl.pretraining import view_sheet
    from cl.pretraining.monitor import watch
    from cl.runtime import machine
    from cl.runtime.distributed import rank, ranks
    from cl.runtime.tensor_files import save_tensors
    from cl.training import optim
    from cl.training.checkpoints import Checkpoints
    from cl.training.loop import train

    here = machine.find(params.precision, deterministic=params.deterministic)
    progress = command.progress("pretrain")
    if params.precision == "bf16" and machine.slow_bf16():
        progress.say(
            "precision=bf16 is emulated on this hardware, many times slower than fp32; results are the same kind"
        )
    for sentence in locations.missing(params.transfers):
        progress.say(sentence)
    bank, queries = locations.reader("train"), locations.reader("val")
    checkpoints = Checkpoints(command.scratch("pretrain"), command.checkpoint_seconds())
    with command.results("pretrain") as results:
        task = build(params, here)
        fixed: Any = task.method.predictor if params.optim.predictor_lr == "fixed" else None
        plan = Plan(len(bank), params.optim.batch_size, params.seed, rank(), ranks())
        data = TrainSet(bank, list(params.views.values()), plan)
        dropped = len(bank) - plan.steps_per_epoch * plan.batch_size
        progress.say(
            f"{params.method.kind} with {params.loss.kind}, {len(bank)} images ({dropped} left out of each epoch), "
            f"batch {params.optim.batch_size}, learning rate {params.optim.lr():.4g}, "
            f"on {ranks()} x {here.device.type} in {here.precision}"
        )
        rows = train(
            task,
            data,
            params.optim,
            optim.build(params.optim, [optim.Part(task)], fixed),
            source=params.dataset,
            progress=progress,
            checkpoints=checkpoints,
            each_epoch=lambda epoch: watch(
                task, params.optim.monitor, bank, queries, params.dataset, progress
            ),
        )
        if command.is_main_process():
            _write_rows(results.folder / "epochs.csv", rows)
            view_sheet.draw(params.dataset, data, results.folder / "views.png")
            results.metrics |= {"pretrain_loss": rows[-1]["loss"], "pretrain_knn_top1": rows[-1]["knn_top1"]}
            results.notes |= {
                "effective_lr": params.optim.lr(),
                "negatives": task.negatives,
                "images_left_out": dropped,
            }
            results.notes["images_per_second"] = round(
                sum(row["images_per_second"] for row in rows) / len(rows), 1
            )
            metadata = {
                "parameters": json.dumps(provenance.declared("pretrain")[1]),
                "data_manifest_sha256": locations.manifest_hash(),
            }
            save_tensors(task.method.backbone.state_dict(), locations.BACKBONE, metadata)
            save_tensors(task.method.state_dict(), locations.METHOD, metadata)
    if command.is_main_process():
        checkpoints.discard()


def build(params: "Params", here: "Machine") -> "PretrainingTask":
    """The method with its loss, initialised from the seed, on the device."""
    import torch
    from torchvision.models.resnet import ResNet

    from cl.config import module_of
    from cl.methods import Setup
    from cl.networks import backbones
    from cl.pretraining.task import PretrainingTask
    from cl.runtime.distributed import ranks

    microbatches = params.optim.microbatches
    if microbatches > 1 and params.bn_groups % (ranks() * microbatches):
        images = params.optim.batch_size / ranks() / microbatches
        raise ValueError(
            f"optim.microbatches={microbatches} on {ranks()} processes makes microbatches of {images:g} images, which is no multiple of "
            f"bn_group={params.bn_group}; choose fewer microbatches or a smaller bn_group"
        )
    torch.manual_seed(params.seed)
    setup = Setup(
        backbones.build(params.backbone),
        params.temperature,
        params.patches,
        params.bn_groups,
        params.seed,
        microbatches,
    )
    method = module_of("methods", params.method.kind).Method(params.method, setup)
    if params.optim.compile:
        for network in method.modules():
            if isinstance(network, ResNet):
                network.compile()
    task = PretrainingTask(
        method, module_of("losses", params.loss.kind), params.loss, params.method.scale, here
    )
    return here.place(task)


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({key: round(value, 6) for key, value in row.items()} for row in rows)


if __name__ == "__main__":
    main()
