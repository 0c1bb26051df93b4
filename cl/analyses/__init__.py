"""Analyses of a finished run, one file each: a pydantic `Config` and `analyze(config, context)`."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cl.machine import Machine
from cl.methods import Framework
from cl.order import Plan
from cl.progress import Progress
from cl.reader import TrainSet
from cl.shards import Reader
from cl.sources import Source
from cl.views import View


@dataclass(frozen=True)
class Context:
    """The finished framework in eval mode, and the views it was trained with."""

    method: Framework
    views: list[View]
    train: Reader
    source: Source
    seed: int
    machine: Machine
    progress: Progress
    out: Path

    @torch.no_grad()
    def embeddings(self, batch_size: int, batches: int) -> Iterator[list[Tensor]]:
        """Unit embeddings (N, D) of two views of random batches, augmented as in training, batch norm in eval mode."""
        two = [view.model_copy(update={"count": 1}) for view in self.views for _ in range(view.count)][:2]
        data = TrainSet(self.train, two, Plan(len(self.train), batch_size, self.seed))
        inputs = data.inputs(self.source, self.machine.device)
        for batch in data.batches(0, batches, self.machine.workers):
            views, _ = inputs(batch)
            yield [self.method.embed(view) for view in views]


def write_histogram(path: Path, values: dict[str, np.ndarray], bins: np.ndarray) -> None:
    """A CSV with the columns series, from, to, density."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["series", "from", "to", "density"])
        for name, numbers in values.items():
            density, _ = np.histogram(numbers, bins, density=True)
            for low, high, value in zip(bins[:-1], bins[1:], density, strict=True):
                writer.writerow([name, f"{low:.4f}", f"{high:.4f}", f"{value:.6f}"])
