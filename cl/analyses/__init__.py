"""Analyses of a finished run, one file each: a pydantic `Config` and `analyze(config, context)`."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cl.data.order import Plan, reduced
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.views import View
from cl.evaluations import MeasurementConfig, MeasurementContext
from cl.methods import BaseMethod
from cl.objective.batch import Batch
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from cl.runtime.tensor_files import load_state, load_tensors


class AnalysisConfig(MeasurementConfig):
    """Parameters common to analyses."""

    @property
    def needs_queue(self) -> bool:
        """Whether the analysis reads the method's queue of negatives."""
        return False


class BatchesConfig(AnalysisConfig):
    """Parameters common to analyses of batches of training images."""

    batch_size: int = Field(gt=1)

    def check(self, train: Reader, val: Reader) -> None:
        Plan(len(train), self.batch_size, seed=0)  # refuses a batch larger than the split

    def for_few_images(self, train: Reader, val: Reader) -> Self:
        return self.model_copy(update={"batch_size": reduced(self.batch_size, len(train))})


@dataclass(frozen=True)
class AnalysisContext(MeasurementContext):
    """A trained method in eval mode, and the views and log of its training.

    backbone: the encoder that the run handed over: the method's, or the start of the training.
    epochs: the rows of results/pretrain/epochs.csv.
    kept: files of the method after earlier epochs (`optim.keep_every`), by epoch.
    """

    method: BaseMethod
    backbone: nn.Module
    views: list[View]
    epochs: list[dict[str, float]]
    kept: dict[int, Path]

    def by_epoch(self) -> Iterator[tuple[int, Self]]:
        """Contexts of the kept epochs, in order, then the finished one; use each before taking the next."""
        method = copy.deepcopy(self.method) if self.kept else self.method
        for epoch, path in sorted(self.kept.items()):
            load_state(method, load_tensors(path)[0], path, "run `dvc repro pretrain`")
            yield epoch, replace(self, method=method)
        yield int(self.epochs[-1]["epoch"]), self

    @torch.no_grad()
    def embeddings(
        self, batch_size: int, batches: int, count: int = 2, *, of: str = "embedding"
    ) -> Iterator[list[Tensor]]:
        """Unit rows (N, D) of `count` views of random batches, augmented like training's large views.

        The trained encoder computes them, even if the method evaluates another one (DINO). With `of`
        "backbone", they are the features of the backbone that was handed over.
        """
        for batch in self._batches(self._large(count), batch_size, batches):
            if of == "embedding":
                yield [self.method.embed(view) for view in batch.views]
            else:
                yield [F.normalize(self.backbone(view).float(), dim=1) for view in batch.views]

    @torch.no_grad()
    def contrast(self, images: int, batch_size: int, *, queue: bool = False) -> Contrast:
        """The method's queries and positives for random images, from the finished encoder in eval mode.

        Negatives are the other images' positives; with `queue`, the older keys that training left there.
        """
        queries, positives = [], []
        for batch in self._batches(self.views, batch_size, -(-images // batch_size)):
            term = self.method(batch)[0]
            queries.append(term.queries.unflatten(0, (batch_size, -1)))  # (N, E, D), E queries per image
            positives.append(term.positives.unflatten(0, (batch_size, -1)))
        q = torch.cat(queries)[:images]
        p = torch.cat(positives)[:images]
        if queue:
            negatives = Negatives(term.negatives.rows)
        else:
            itself = torch.arange(images).repeat_interleave(q.shape[1])[:, None]
            negatives = Negatives(p[:, 0, 0], excluded=itself)
        return Contrast(q.flatten(0, 1), p.flatten(0, 1), negatives)

    def temperature(self, own: float | None) -> float:
        """The analysis's own temperature, else training's, else 1 (BYOL and SimSiam have none)."""
        trained = self.method.temperature
        if own is None and trained is None:
            self.progress.say("using temperature 1, because training used none")
        return own or trained or 1.0

    def _large(self, count: int) -> list[View]:
        """`count` single views that repeat the one or two large views of training."""
        single = [view.model_copy(update={"count": 1}) for view in self.views for _ in range(view.count)]
        large = [view for view in single[:2] if view.size == single[0].size and not view.jigsaw]
        return [large[number % len(large)] for number in range(count)]

    def _batches(self, views: list[View], batch_size: int, batches: int) -> Iterator[Batch]:
        plan = Plan(len(self.train), batch_size, self.seed)
        data = TrainSet(self.train, self.transform, views, plan)
        inputs = data.inputs(self.machine)
        for batch in data.batches(0, batches, self.machine.workers):
            yield inputs(batch)


def as_numpy(parts: list[Tensor]) -> np.ndarray:
    """The parts concatenated, on the CPU."""
    return torch.cat(parts).float().cpu().numpy()
