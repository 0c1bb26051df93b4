"""Five optimizer steps of an experiment of ours beside an author's model."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.authors.harness.experiment import STEPS, Experiment, draw_views
from benchmarks.authors.harness.pairing import BUFFERS, WEIGHTS, Pair, copy_layers, gradients, values
from benchmarks.authors.harness.source import Source
from cl.runtime.distributed import mean_over_ranks, ranks

Agreement = dict[str, float]  # the largest relative difference of each kind of tensor
Numbers = dict[str, Any]  # what our side measured


class Author:
    """The authors' side. Their classes and functions are used unchanged; each file adds the code around them.

    online, heads, target: modules whose layers are in the order of ours; heads are all but the projector.
    share: the factor that turns their loss, if it is a sum over processes, into a mean.
    """

    optimizer: Optimizer
    online: list[nn.Module]
    heads: list[nn.Module] = []  # noqa: RUF012
    target: list[nn.Module] = []  # noqa: RUF012
    buffers = BUFFERS
    share = 1.0

    def start(self, ours: Experiment) -> None:
        """Take over our initial weights."""
        for name, modules in ours.parts().items():
            copy_layers(getattr(self, name), modules)

    def set_lr(self, ours: Experiment) -> None:
        """Set the learning rates of a step, by default ours."""
        for group in self.optimizer.param_groups:
            group["lr"] = ours.lr()

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        """Their loss of this process's views; `ours` is for what our side drew."""
        raise NotImplementedError

    def clip(self) -> None:
        """Clip the gradients, if they do."""

    def update(self, ours: Experiment) -> None:
        """Take their optimizer's step, and what follows it."""
        self.optimizer.step()

    def moved_target(self, ours: Experiment) -> list[nn.Module]:
        """The target after a step; a copy where they move it only at the next."""
        return self.target

    def queues(self, ours: Experiment) -> Iterable[Pair]:
        """Their queues or banks with ours, rows in our order."""
        return ()


@dataclass(frozen=True)
class Training:
    """A comparison.

    author: builds the authors' side from the folder of their clone, next to our side.
    sizes: of the views.
    tolerance: expected of the agreement; below 1e-10 unless the docstring of the source says why.
    """

    name: str
    source: Source
    author: Callable[[Path, Experiment], Author]
    overrides: tuple[str, ...]
    sizes: tuple[int, ...] = (32, 32)
    processes: int = 1
    steps_per_epoch: int = STEPS
    tolerance: float = 1e-10

    def compare(self, folder: Path) -> tuple[Agreement, Numbers]:
        """The agreement of both sides, and what ours measured."""
        ours = self._experiment()
        theirs = self.author(folder, ours)
        theirs.start(ours)
        differences: dict[str, float] = {}
        for step in range(STEPS):
            views = draw_views(step, list(self.sizes))
            for kind, pair in self._step(theirs, ours, views):
                differences[kind] = max(differences.get(kind, 0.0), pair.difference())
        return differences, ours.numbers()

    def replay(self, steps: int = STEPS) -> Numbers:
        """What our side measures in the first steps, in a single process and without the authors' code."""
        ours = self._experiment()
        for step in range(steps):
            ours.begin()
            ours.backward(draw_views(step, list(self.sizes)))
            ours.update()
        return ours.numbers()

    def _experiment(self) -> Experiment:
        return Experiment(self.overrides, self.steps_per_epoch)

    @staticmethod
    def _step(theirs: Author, ours: Experiment, views: list[Tensor]) -> Iterator[tuple[str, Pair]]:
        """Train both sides for a step; what to compare, by kind."""
        parts = ours.parts()
        target = parts.pop("target", None)
        ours.begin()
        theirs.set_lr(ours)
        theirs.optimizer.zero_grad()
        loss = theirs.loss(views, ours)
        loss.backward()
        _average(theirs.optimizer)
        theirs.clip()
        yield "losses", Pair("loss", theirs.share * mean_over_ranks(loss.detach()), ours.backward(views))
        for name, modules in parts.items():
            yield from (("gradients", pair) for pair in gradients(getattr(theirs, name), modules))
        theirs.update(ours)
        ours.update()
        for name, modules in parts.items():
            yield from (("weights", pair) for pair in values(getattr(theirs, name), modules, WEIGHTS))
            yield from (("buffers", _mean(p)) for p in values(getattr(theirs, name), modules, theirs.buffers))
        if target:
            moved = theirs.moved_target(ours)
            yield from (("target", pair) for pair in values(moved, target, WEIGHTS))
            yield from (("target", _mean(pair)) for pair in values(moved, target, theirs.buffers))
        yield from (("queue", pair) for pair in theirs.queues(ours))


@torch.no_grad()
def _average(optimizer: Optimizer) -> None:
    """Average the gradients over processes, as DistributedDataParallel does."""
    if ranks() == 1:
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= ranks()


def _mean(pair: Pair) -> Pair:
    """Their running statistics are each process's own, ours are the mean over processes."""
    return Pair(pair.name, mean_over_ranks(pair.theirs.double()), pair.ours, pair.least)
