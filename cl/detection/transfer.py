"""Train a detector on a pretrained backbone, test it, and draw what it finds."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchvision.models.resnet import ResNet

from cl.console.progress import Progress
from cl.detection.average_precision import Detections
from cl.detection.config import Config
from cl.detection.data import DataSet
from cl.detection.drawing import draw
from cl.detection.engines import Detector, engine
from cl.detection.records import Record
from cl.detection.samples import TrainImages, ahead
from cl.networks.batch_norm import GroupBatchNorm, set_groups, update_running_stats
from cl.runtime.distributed import mean_over_ranks, rank, ranks
from cl.runtime.machine import Machine
from cl.sources import Source
from cl.training.checkpoints import Checkpoints
from cl.training.loop import train
from cl.training.tasks import Task


class Detection(Task):
    """A detector; the loss is the sum of its losses. Batch norm takes its statistics from the whole batch."""

    remedy = "Lower base_lr of the transfer, or lengthen its warmup"

    def __init__(self, detector: Detector, machine: Machine, seed: int) -> None:
        super().__init__(machine)
        assert isinstance(detector, nn.Module)
        set_groups(detector, 1)
        self.detector, self.seed = detector, seed
        detector.predictor.register_forward_hook(self._note)

    def _note(self, predictor: nn.Module, inputs: Any, outputs: tuple[Tensor, ...]) -> None:
        self.largest_logit = outputs[0].detach().amax()

    def begin_step(self, step: int, progress: float) -> None:
        """Which anchors and regions are drawn depends on (seed, step, rank) alone."""
        torch.manual_seed((self.seed * 1_000_003 + step) * ranks() + rank())

    def forward(self, items: list[Any]) -> Tensor:
        with self.machine.autocast():
            losses = self.detector(items)
        return torch.stack([loss.float() for loss in losses.values()]).sum()

    def after_step(self, progress: float) -> None:
        update_running_stats(self.detector)


def run(
    config: Config,
    backbone: ResNet,
    dataset: DataSet,
    *,
    source: Source,
    seed: int,
    machine: Machine,
    progress: Progress,
    out: Path,
    checkpoints: Checkpoints | None = None,
) -> dict[str, float]:
    """Fine-tune a detector, all layers of it, and return its average precisions in percent, as `average_precision.evaluate`.

    Every process of a run calls it, and all get the same. Tables of the epochs and classes, a picture of detections, and what
    the engine says about itself go to `out`.
    """
    torch.manual_seed(seed)
    library = engine(config.engine)
    detector = machine.place(library.Detector(config, backbone, dataset, source))
    task = Detection(detector, machine, seed)
    data = TrainImages(dataset.train, config, seed, detector.item)
    optimizer = build_optimizer(detector, config)
    solver = config.solver(data.plan.steps_per_epoch)
    rows = train(task, data, solver, optimizer, progress=progress, checkpoints=checkpoints)
    estimate_statistics(task, data, config)
    found = detect(detector, dataset, machine, progress)
    shared: list[dict[str, float]] = [{}]
    if rank() == 0:
        detector.write(out)
        dataset.findings.write(out / "data.csv")
        _write(out / "epochs.csv", list(rows[0]), [list(row.values()) for row in rows])
        draw(found, dataset, out / "detections.png")
        shared[0], by_class = library.evaluate(found, dataset, config)
        _write_classes(out / "classes.csv", dataset.classes, by_class)
    if ranks() > 1:
        dist.broadcast_object_list(shared)
    return shared[0]


def build_optimizer(detector: Detector, config: Config) -> torch.optim.SGD:
    """SGD on everything that wants a gradient: no weight decay on norm layers, pretrained layers at a rate of their own."""
    assert isinstance(detector, nn.Module)
    norms = {parameter for norm in _norms(detector) for parameter in norm.parameters()}
    body = set(detector.pretrained.parameters())
    groups = [
        {
            "params": [
                p
                for p in detector.parameters()
                if p.requires_grad and (p in norms, p in body) == (norm, in_body)
            ],
            "weight_decay": 0.0 if norm else config.weight_decay,
            "scale": config.backbone_lr if in_body else 1.0,
            "fixed": False,
        }
        for norm in (False, True)
        for in_body in (True, False)
    ]
    return torch.optim.SGD(groups, config.base_lr, momentum=config.momentum)


@torch.no_grad()
def estimate_statistics(task: Detection, data: TrainImages, config: Config) -> None:
    """Batch norm's statistics of the finished detector: those of the next `precise_bn` batches together ("precise BN").

    A batch counts by its number of elements a channel, n, and its unbiased variance as (n - 1) / n of it (Wu and Johnson 2021).
    """
    if not config.precise_bn:
        return
    norms = _norms(task)
    usual = [norm.momentum for norm in norms]
    means, squares = ([torch.zeros_like(norm.running_mean) for norm in norms] for _ in range(2))
    own, totals = (
        torch.zeros(len(norms), device=task.machine.device),
        torch.zeros(len(norms), device=task.machine.device),
    )
    hooks = [norm.register_forward_pre_hook(_counting(own, i)) for i, norm in enumerate(norms)]
    task.train()
    for norm in norms:
        norm.momentum = 1.0  # running statistics are those of the last batch
    start = config.scaled(config.iterations)
    steps = range(start, start + config.precise_bn)
    for step, items in zip(steps, data.batches(steps.start, steps.stop, task.machine.workers), strict=True):
        task.begin_step(step, 1.0)
        task(items)
        task.after_step(1.0)
        counts = mean_over_ranks(own) * ranks()
        totals += counts
        for norm, mean, square, n in zip(norms, means, squares, counts, strict=True):
            mean += n * norm.running_mean
            square += (n - 1) * norm.running_var + n * norm.running_mean**2
    for norm, mean, square, momentum, hook, n in zip(
        norms, means, squares, usual, hooks, totals, strict=True
    ):
        norm.running_mean.copy_(mean / n)
        norm.running_var.copy_(square / n - (mean / n) ** 2)
        norm.momentum = momentum
        hook.remove()
    task.eval()


def _counting(counts: Tensor, place: int) -> Callable[[nn.Module, tuple[Tensor]], None]:
    """A hook that notes how many elements a channel a norm takes its statistics from."""

    def count(norm: nn.Module, inputs: tuple[Tensor]) -> None:
        if norm.training:
            counts[place] = inputs[0].numel() / inputs[0].shape[1]

    return count


def _norms(module: nn.Module) -> list[Any]:
    """Its batch norms, of one process or of several."""
    return [m for m in module.modules() if isinstance(m, (nn.modules.batchnorm._BatchNorm, GroupBatchNorm))]


def detect(detector: Detector, dataset: DataSet, machine: Machine, progress: Progress) -> list[Detections]:
    """What the detector finds in every test image; the ranks share the images, and the first one gets them all."""
    own = dataset.test[rank() :: ranks()]
    found = []
    with progress.count(len(own), "test images") as done:
        for picture in ahead(Record.picture, own, machine.workers):
            found.append(detector.detect(picture))
            done(1)
    if ranks() == 1:
        return found
    parts: list[Any] = [None] * ranks()
    dist.gather_object(found, parts if rank() == 0 else None)
    return [parts[i % ranks()][i // ranks()] for i in range(len(dataset.test))] if rank() == 0 else []


def _write_classes(path: Path, classes: list[str], columns: dict[str, np.ndarray]) -> None:
    table = np.stack(list(columns.values()), axis=1)  # (classes, metrics)
    cells = [["" if np.isnan(value) else round(float(value), 2) for value in row] for row in table]
    _write(path, ["class", *columns], [[name, *row] for name, row in zip(classes, cells, strict=True)])


def _write(path: Path, head: list[str], rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)
