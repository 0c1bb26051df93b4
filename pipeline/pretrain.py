"""pretrain: a framework and a loss on unlabelled views, to models/backbone.safetensors."""

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline import command

if TYPE_CHECKING:
    from cl.config import Params
    from cl.machine import Machine
    from cl.shards import Reader
    from cl.tasks import Contrastive


@click.command()
@command.entry_point
def main() -> None:
    """Pretrain the backbone as params.yaml says, from data/shards.

    A run that was stopped or killed continues by itself: checkpoints lie in CL_SCRATCH (default scratch/).
    """
    params = command.params()
    from cl import machine, optim, view_sheet
    from cl.checkpoint import Checkpoints, save_tensors
    from cl.order import Plan
    from cl.progress import Progress
    from cl.reader import TrainSet
    from cl.train import train

    here = machine.find(params.precision, deterministic=params.deterministic)
    progress = Progress("pretrain")
    if params.precision == "bf16" and machine.slow_bf16():
        progress.say("precision=bf16 is emulated on this hardware, many times slower than fp32; results are the same kind")
    bank, queries = command.reader("train"), command.reader("val")
    checkpoints = Checkpoints(command.scratch("pretrain"), command.checkpoint_seconds())
    with command.results("pretrain") as results:
        task = build(params, here)
        fixed: Any = task.method.predictor if params.optim.predictor_lr == "fixed" else None
        data = TrainSet(bank, list(params.views.values()), Plan(len(bank), params.optim.batch_size, params.seed))
        dropped = len(bank) - data.plan.steps_per_epoch * data.plan.batch_size
        progress.say(
            f"{params.method.kind} with {params.loss.kind}, {len(bank)} images ({dropped} left out of each epoch), "
            f"batch {params.optim.batch_size}, learning rate {params.optim.lr():.4g}, on {here.device} in {here.precision}"
        )
        rows = train(
            task,
            data,
            params.optim,
            optim.build(params.optim, [(task, 1.0)], fixed),
            source=params.dataset,
            progress=progress,
            checkpoints=checkpoints,
            each_epoch=lambda epoch: monitor(params, task, bank, queries, here),
        )
        _write_rows(results.folder / "epochs.csv", rows)
        view_sheet.draw(params.dataset, data, results.folder / "views.png")
        results.metrics |= {"pretrain_loss": rows[-1]["loss"], "pretrain_knn_top1": rows[-1]["knn_top1"]}
        results.notes |= {"effective_lr": params.optim.lr(), "negatives": task.negatives, "images_left_out": dropped}
        results.notes["images_per_second"] = round(sum(row["images_per_second"] for row in rows) / len(rows), 1)
        metadata = {
            "parameters": json.dumps(command.declared("pretrain")[1]),
            "data_manifest_sha256": command.manifest_hash(),
        }
        save_tensors(task.method.backbone.state_dict(), command.BACKBONE, metadata)
        save_tensors(task.method.state_dict(), command.METHOD, metadata)
    checkpoints.discard()


def build(params: "Params", here: "Machine") -> "Contrastive":
    """The framework with its loss, initialised from the seed, on the device."""
    import torch

    from cl import backbones
    from cl.config import module_of
    from cl.methods import Setup
    from cl.tasks import Contrastive

    torch.manual_seed(params.seed)
    setup = Setup(backbones.build(params.backbone), params.temperature, params.patches, params.bn_groups, params.seed)
    method = module_of("methods", params.method.kind).Method(params.method, setup)
    task = Contrastive(method, module_of("losses", params.loss.kind), params.loss, params.method.scale, here)
    return here.place(task)


def monitor(params: "Params", task: "Contrastive", train: "Reader", val: "Reader", here: "Machine") -> dict[str, float]:
    """Nearest neighbours on a part of both splits' labelled images, by the features and by the embeddings, in percent."""
    import torch
    import torch.nn.functional as F

    from cl.features import extract
    from cl.knn import top1, vote

    watch = params.optim.monitor
    features, labels = [], []
    for reader, count in ((train, watch.bank), (val, watch.queries)):
        positions = reader.labelled[:count]  # the shards are shuffled: any part is a fair sample
        features.append(extract(task.method.backbone, reader, params.dataset, here, positions))
        labels.append(torch.from_numpy(reader.labels[positions]).to(here.device))
    scores = {}
    for name, network in {"knn_top1": torch.nn.Identity(), "knn_embedding_top1": task.method.projector}.items():
        with torch.no_grad():
            bank, queries = (F.normalize(network(x), dim=1) for x in features)
        classes = len(train.manifest.classes)
        votes, _ = vote(queries, bank, labels[0], classes, k=watch.k, temperature=watch.temperature, memory=64)
        scores[name] = top1(votes.argmax(1), labels[1])
    return scores


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({key: round(value, 6) for key, value in row.items()} for row in rows)


if __name__ == "__main__":
    main()
