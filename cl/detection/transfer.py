"""Fine-tune a detector on a pretrained backbone, test it, and draw its detections."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from cl.console.progress import Progress
from cl.data.transform import Transform
from cl.detection.average_precision import Detections, evaluate
from cl.detection.config import Config
from cl.detection.drawing import draw
from cl.detection.engines import Detector, engine
from cl.detection.records import DataSet, Record
from cl.detection.samples import TrainImages, prefetch
from cl.networks.backbones import Backbone
from cl.networks.batch_norm import BATCH_NORMS, NORMS, set_groups
from cl.runtime.distributed import mean_over_ranks, rank, ranks
from cl.runtime.machine import Machine
from cl.runtime.tables import write_csv
from cl.training.checkpoints import Checkpoints
from cl.training.loop import train
from cl.training.optim import Group
from cl.training.tasks import Task


@dataclass(frozen=True)
class FineTuningRun:
    """One fine-tuning: its seed, where it computes, reports and writes, and checkpoints to resume from."""

    seed: int
    machine: Machine
    progress: Progress
    out: Path
    checkpoints: Checkpoints | None = None


class Detection(Task):
    """A detector; the loss is the sum of its losses. Batch-norm statistics are those of the whole batch."""

    remedy = "Lower base_lr of the transfer or lengthen its warmup"

    def __init__(self, detector: Detector, machine: Machine, seed: int) -> None:
        super().__init__(machine, seed)
        assert isinstance(detector, nn.Module)
        set_groups(detector, 1)
        self.detector = detector

    def forward(self, items: list[Any]) -> Tensor:
        with self.machine.autocast():
            losses = self.detector(items)
        return torch.stack([loss.float() for loss in losses.values()]).sum()


def fine_tune(
    config: Config, backbone: Backbone, dataset: DataSet, transform: Transform, run: FineTuningRun
) -> dict[str, float]:
    """Fine-tune all layers of a detector and return its metrics, those of `average_precision.evaluate`.

    Every process of a run calls it, and all return the same. Tables by epoch and class, a picture of
    detections, and the files of the engine go to `run.out`.
    """
    torch.manual_seed(run.seed)
    detector = run.machine.place(engine(config.engine).Detector(config, backbone, dataset, transform))
    task = Detection(detector, run.machine, run.seed)
    data = TrainImages(dataset.train, config, run.seed, detector.item)
    optimizer = build_optimizer(detector, config)
    solver = config.solver(data.plan.steps_per_epoch)
    rows = train(task, data, solver, optimizer, progress=run.progress, checkpoints=run.checkpoints)
    estimate_statistics(task, data, config)
    detections = detect(detector, dataset, run.machine, run.progress)
    shared: list[dict[str, float]] = [{}]
    if rank() == 0:
        detector.write(run.out)
        write_csv(run.out / "epochs.csv", list(rows[0]), [list(row.values()) for row in rows])
        dataset.findings.write(run.out / "data.csv")
        draw(detections, dataset, run.out / "detections.png")
        shared[0], by_class = evaluate(detections, dataset, config)
        table = np.stack(list(by_class.values()), axis=1)  # (classes, metrics)
        cells = [["" if np.isnan(value) else round(float(value), 2) for value in row] for row in table]
        named = [[name, *row] for name, row in zip(dataset.classes, cells, strict=True)]
        write_csv(run.out / "classes.csv", ["class", *by_class], named)
    if ranks() > 1:
        dist.broadcast_object_list(shared)
    return shared[0]


def build_optimizer(detector: Detector, config: Config) -> torch.optim.Optimizer:
    """SGD or AdamW, without weight decay on norm layers, and with a separate rate for pretrained layers."""
    assert isinstance(detector, nn.Module)
    norms = {p for layer in detector.modules() if isinstance(layer, NORMS) for p in layer.parameters()}
    pretrained = set(detector.pretrained.parameters())
    trained = [p for p in detector.parameters() if p.requires_grad]
    groups = [
        Group(
            [p for p in trained if (p in norms, p in pretrained) == (is_norm, is_pretrained)],
            weight_decay=0.0 if is_norm else config.weight_decay,
            scale=config.backbone_lr if is_pretrained else 1.0,
        )._asdict()
        for is_norm in (False, True)
        for is_pretrained in (True, False)
    ]
    if config.betas:
        return torch.optim.AdamW(groups, config.base_lr, betas=config.betas)
    return torch.optim.SGD(groups, config.base_lr, momentum=config.momentum)


@torch.no_grad()
def estimate_statistics(task: Detection, data: TrainImages, config: Config) -> None:
    """Set the detector's batch-norm statistics to those of the next `precise_bn` batches ("precise BN").

    With n elements per channel in a batch, its mean counts n times, and its unbiased variance is multiplied
    by (n - 1) / n (Wu and Johnson 2021). Leaves the task in eval mode.
    """
    norms: list[Any] = [m for m in task.modules() if isinstance(m, BATCH_NORMS)]
    if not config.precise_bn or not norms:
        return
    local_counts, totals = (torch.zeros(len(norms), device=task.machine.device) for _ in range(2))

    def count(i: int, norm: nn.Module, inputs: tuple[Tensor]) -> None:
        if norm.training:
            local_counts[i] = inputs[0].numel() / inputs[0].shape[1]

    hooks = [norm.register_forward_pre_hook(partial(count, i)) for i, norm in enumerate(norms)]
    means, squares = ([torch.zeros_like(norm.running_mean) for norm in norms] for _ in range(2))
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0  # running statistics become those of the last batch
    task.train()
    start = config.scaled(config.iterations)
    batches = data.batches(start, start + config.precise_bn, task.machine.workers)
    for step, items in enumerate(batches, start):
        task.begin_step(step, 1.0)
        task(items)
        task.after_step(1.0)
        counts = mean_over_ranks(local_counts) * ranks()  # (norms,): elements per channel, on all ranks
        totals += counts
        for norm, mean, square, n in zip(norms, means, squares, counts, strict=True):
            mean += n * norm.running_mean
            square += (n - 1) * norm.running_var + n * norm.running_mean**2
    task.eval()
    for norm, momentum, hook in zip(norms, momenta, hooks, strict=True):
        norm.momentum = momentum
        hook.remove()
    for norm, mean, square, n in zip(norms, means, squares, totals, strict=True):
        norm.running_mean.copy_(mean / n)
        norm.running_var.copy_(square / n - (mean / n) ** 2)


def detect(detector: Detector, dataset: DataSet, machine: Machine, progress: Progress) -> list[Detections]:
    """The detections in every test image: the ranks share the images, rank 0 returns all, the others none."""
    local = dataset.test[rank() :: ranks()]
    detections = []
    with progress.count(len(local), "test images") as done:
        for picture in prefetch(Record.picture, local, machine.workers):
            detections.append(detector.detect(picture))
            done(1)
    if ranks() == 1:
        return detections
    parts: list[Any] = [None] * ranks()
    dist.gather_object(detections, parts if rank() == 0 else None)
    return [parts[i % ranks()][i // ranks()] for i in range(len(dataset.test))] if rank() == 0 else []
