"""Analyses of a finished run, one file each: a pydantic `Config` and `analyze(config, context)`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cl.charts import Chart
from cl.contrast import Contrast
from cl.losses import LossConfig
from cl.machine import Machine
from cl.methods import Framework
from cl.order import Plan
from cl.progress import Progress
from cl.reader import TrainSet
from cl.shards import Reader
from cl.sources import Source
from cl.views import View

BLOCK = 2**22  # logits held at a time: 16 MiB


@dataclass(frozen=True)
class Context:
    """The finished framework in eval mode, the views it was trained with, and what its training left.

    loss, scale, batch_size: what it was trained with; `scale` multiplies the loss.
    epochs: the rows of results/pretrain/epochs.csv.
    """

    method: Framework
    views: list[View]
    train: Reader
    val: Reader
    source: Source
    loss: LossConfig
    scale: float
    batch_size: int
    epochs: list[dict[str, float]]
    seed: int
    machine: Machine
    progress: Progress
    out: Path

    @torch.no_grad()
    def embeddings(self, batch_size: int, batches: int, count: int = 2) -> Iterator[list[Tensor]]:
        """Unit embeddings (N, D) of `count` views of random batches, augmented as the large views of training."""
        for views in self._batches(self._large(count), batch_size, batches):
            yield [self.method.embed(view) for view in views]

    @torch.no_grad()
    def features(self, batch_size: int, batches: int, count: int = 2) -> Iterator[list[Tensor]]:
        """The same of the backbone's features (N, D), as unit rows."""
        for views in self._batches(self._large(count), batch_size, batches):
            yield [torch.nn.functional.normalize(self.method.backbone(view).float(), dim=1) for view in views]

    @torch.no_grad()
    def contrasts(self, batch_size: int, batches: int) -> Iterator[Contrast]:
        """The first contrast that the framework makes of random batches: its queries, positives and negatives.

        Where a framework has no negatives, they are the positives of the batch's other images.
        """
        for views in self._batches(self.views, batch_size, batches):
            contrast = self.method(views)[0]
            if contrast.negatives is None:
                each = len(contrast.queries) // batch_size
                itself = torch.arange(batch_size).repeat_interleave(each)[:, None]
                contrast = Contrast(
                    contrast.queries, contrast.positives, contrast.positives[::each, 0], itself, None, contrast.temperature
                )
            yield contrast

    def _large(self, count: int) -> list[View]:
        """`count` single views: the large ones of training in turn."""
        one = [view.model_copy(update={"count": 1}) for view in self.views for _ in range(view.count)][:2]
        return [one[number % len(one)] for number in range(count)]

    def _batches(self, views: list[View], batch_size: int, batches: int) -> Iterator[list[Tensor]]:
        if batch_size > len(self.train):
            raise ValueError(f"batches of {batch_size} images cannot come from {len(self.train)}; choose fewer")
        data = TrainSet(self.train, views, Plan(len(self.train), batch_size, self.seed))
        inputs = data.inputs(self.source, self.machine.device)
        for batch in data.batches(0, batches, self.machine.workers):
            yield inputs(batch)[0]

    def curve(self, name: str, title: str, columns: dict[str, str], y: str) -> Chart:
        """Columns of the training's log by epoch, under the labels given; empty where it has none of them."""
        chart = Chart(name, title, "epoch", y)
        for column, label in columns.items():
            for row in self.epochs:
                if column in row:
                    chart.add(label, row["epoch"], row[column])
        return chart


class Sample(NamedTuple):
    """Some queries of a contrast with random negatives of their own.

    queries (b, D), positives (b, D); positive (b,), logit of the positive; negatives (C, D); columns (b, K), which of them
    each query has drawn, in random order; logits (b, K).
    """

    queries: Tensor
    positives: Tensor
    positive: Tensor
    negatives: Tensor
    columns: Tensor
    logits: Tensor


def samples(contrast: Contrast, count: int, temperature: float, generator: torch.Generator) -> Iterator[Sample]:
    """Each query with `count` distinct negatives drawn among all that count for it, some queries at a time.

    A query with several positives has its first.
    """
    assert contrast.negatives is not None
    negatives = contrast.negatives.to(contrast.queries.dtype)
    for rows in torch.arange(len(contrast.queries)).split(max(1, BLOCK // len(negatives))):
        queries, positives = contrast.queries[rows], contrast.positives[rows, 0]
        lots = torch.rand(len(rows), len(negatives), generator=generator)
        if contrast.selected is not None:
            lots += 1
            lots.scatter_(1, contrast.selected[rows].cpu(), lots.gather(1, contrast.selected[rows].cpu()) - 1)
        if contrast.excluded is not None:
            lots.scatter_(1, contrast.excluded[rows].cpu(), 2.0)
        columns = lots.topk(count, largest=False).indices.to(queries.device)
        logits = (queries @ negatives.T / temperature).gather(1, columns)
        yield Sample(queries, positives, (queries * positives).sum(1) / temperature, negatives, columns, logits)


def counts_that_fit(asked: list[int], contrast: Contrast, progress: Progress) -> list[int]:
    """The numbers of negatives that a query can draw, in order.

    Raises:
        ValueError: none of them.
    """
    available = int(contrast.negative_counts()[0])
    fitting = [count for count in sorted(asked) if count <= available]
    if not fitting:
        raise ValueError(f"negatives={asked}: a query has {available} to draw from; choose fewer, or a larger batch_size")
    if len(fitting) < len(asked):
        progress.say(f"a query has {available} negatives: {', '.join(str(n) for n in asked if n > available)} left out")
    return fitting


def as_numpy(parts: list[Tensor]) -> np.ndarray:
    """Parts of a whole, end to end, on the host."""
    return torch.cat(parts).float().cpu().numpy()
