"""Analyses of a finished run, one file each: a pydantic `Config` and `analyze(config, context)`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cl.batch import Batch
from cl.charts import Chart
from cl.console.progress import Progress
from cl.contrast import Contrast
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.views import View
from cl.losses import LossConfig
from cl.methods import BaseMethod
from cl.runtime.base_config import BaseConfig
from cl.runtime.machine import Machine
from cl.sources import Source

BLOCK = 2**22  # logits held at a time: 16 MiB


@dataclass(frozen=True)
class Context:
    """The finished method in eval mode, the views it was trained with, and what its training left.

    loss, scale, batch_size: what it was trained with; `scale` multiplies the loss.
    epochs: the rows of results/pretrain/epochs.csv.
    """

    method: BaseMethod
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
        for batch in self._batches(self._large(count), batch_size, batches):
            yield [self.method.embed(view) for view in batch.views]

    @torch.no_grad()
    def features(self, batch_size: int, batches: int, count: int = 2) -> Iterator[list[Tensor]]:
        """The same of the backbone's features (N, D), as unit rows."""
        for batch in self._batches(self._large(count), batch_size, batches):
            yield [F.normalize(self.method.backbone(view).float(), dim=1) for view in batch.views]

    @torch.no_grad()
    def contrast(self, images: int, batch_size: int) -> Contrast:
        """Queries and positives that the method makes of `images` random images; negatives are the others' positives.

        All come from the finished encoder in eval mode, which a queue's older keys do not, and no query meets its own image.

        Raises:
            ValueError: an epoch has fewer images.
        """
        if images > (epoch := len(self.train) // batch_size * batch_size):
            raise ValueError(
                f"images={images}: an epoch in batches of {batch_size} has {epoch} images; choose as many or fewer"
            )
        queries, positives = [], []
        for batch in self._batches(self.views, batch_size, -(-images // batch_size)):
            term = self.method(batch)[0]
            queries.append(term.queries.unflatten(0, (batch_size, -1)))  # (N, E, D): E queries per image
            positives.append(term.positives.unflatten(0, (batch_size, -1)))
        q, p = (torch.cat(parts)[:images] for parts in (queries, positives))
        itself = torch.arange(images).repeat_interleave(q.shape[1])[:, None]
        return Contrast(q.flatten(0, 1), p.flatten(0, 1), p[:, 0, 0], itself)

    @torch.no_grad()
    def negatives(self) -> int | None:
        """How many negatives a query had in training; None where the method has none."""
        term = self.method(next(self._batches(self.views, self.batch_size, 1)))[0]
        return int(term.negative_counts().amax()) if isinstance(term, Contrast) else None

    def temperature(self, own: float | None) -> float:
        """That of an analysis, or of training, or 1 where training had none (BYOL, SimSiam)."""
        trained = self.method.temperature
        if own is None and trained is None:
            self.progress.say("temperature 1, because training had none")
        return own or trained or 1.0

    def _large(self, count: int) -> list[View]:
        """`count` single views: the large ones of training in turn."""
        one = [view.model_copy(update={"count": 1}) for view in self.views for _ in range(view.count)][:2]
        return [one[number % len(one)] for number in range(count)]

    def _batches(self, views: list[View], batch_size: int, batches: int) -> Iterator[Batch]:
        if batch_size > len(self.train):
            raise ValueError(
                f"batches of {batch_size} images cannot come from {len(self.train)}; choose fewer"
            )
        data = TrainSet(self.train, self.source, views, Plan(len(self.train), batch_size, self.seed))
        inputs = data.inputs(self.machine.device)
        for batch in data.batches(0, batches, self.machine.workers):
            yield inputs(batch)

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


class Sampling(BaseConfig):
    """`images` give the keys and, the first of them, at least `queries` queries; `negatives` are the numbers K that each draws.

    batch_size: images encoded at a time; temperature: null for that of training.
    """

    negatives: list[int] = Field(min_length=1)
    alpha: float = Field(gt=0)
    temperature: float | None = Field(gt=0)
    images: int = Field(gt=1)
    queries: int = Field(gt=0)
    batch_size: int = Field(gt=1)


def by_count(
    config: Sampling, context: Context, measure: Callable[[Sample, int, float, float], Tensor]
) -> dict[int, Tensor]:
    """`measure(sample, K, alpha, temperature)` (b,) of all queries for each K: (2, N), with the margin, and with alpha = K."""
    temperature, generator = (
        context.temperature(config.temperature),
        torch.Generator().manual_seed(context.seed),
    )
    contrast = context.contrast(config.images, config.batch_size)
    counts = counts_that_fit(config.negatives, contrast, context.progress)
    found: dict[int, list[Tensor]] = {count: [] for count in counts}
    for sample in samples(contrast, counts[-1], temperature, generator, config.queries):
        for count, parts in found.items():
            parts.append(
                torch.stack([measure(sample, count, alpha, temperature) for alpha in (config.alpha, count)])
            )
    return {count: torch.cat(parts, 1) for count, parts in found.items()}


def samples(
    contrast: Contrast, count: int, temperature: float, generator: torch.Generator, queries: int | None = None
) -> Iterator[Sample]:
    """The first `queries`, each with `count` distinct negatives drawn among all that count for it, some at a time.

    A query with several positives has its first.
    """
    assert contrast.excluded is not None
    negatives = contrast.negatives
    for rows in torch.arange(len(contrast.queries))[:queries].split(max(1, BLOCK // len(negatives))):
        q, positives = contrast.queries[rows], contrast.positives[rows, 0]
        lots = torch.rand(len(rows), len(negatives), generator=generator)
        lots.scatter_(1, contrast.excluded[rows].cpu(), 2.0)
        columns = lots.topk(count, largest=False).indices.to(q.device)
        logits = (q @ negatives.T / temperature).gather(1, columns)
        yield Sample(q, positives, (q * positives).sum(1) / temperature, negatives, columns, logits)


def counts_that_fit(asked: list[int], contrast: Contrast, progress: Progress) -> list[int]:
    """The numbers of negatives that a query can draw, in order.

    Raises:
        ValueError: none of them.
    """
    available = int(contrast.negative_counts()[0])
    fitting = [count for count in sorted(asked) if count <= available]
    if not fitting:
        raise ValueError(
            f"negatives={asked}: a query has {available} to draw from; choose fewer, or more images"
        )
    if len(fitting) < len(asked):
        progress.say(
            f"a query has {available} negatives: {', '.join(str(n) for n in asked if n > available)} left out"
        )
    return fitting


def as_numpy(parts: list[Tensor]) -> np.ndarray:
    """Parts of a whole, end to end, on the host."""
    return torch.cat(parts).float().cpu().numpy()
