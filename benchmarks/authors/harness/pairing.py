"""Layers of two networks in the same order: copied, and compared."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.authors.harness.experiment import NORMS, WEIGHTED
from benchmarks.authors.harness.stand_ins import SyncBatchNorm

WEIGHTS = ("weight", "bias")
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
NEGLIGIBLE = 1e-6  # of the largest gradient: smaller ones are rounding, as before batch norm


@dataclass(frozen=True)
class Pair:
    """A tensor of theirs, ours, and the least scale by which their difference is measured."""

    name: str
    theirs: Tensor
    ours: Tensor
    least: float = 0.0

    def difference(self) -> float:
        """Largest difference, relative to the largest number."""
        a, b = self.theirs.detach().double(), self.ours.detach().double()
        assert a.shape == b.shape, (self.name, a.shape, b.shape)
        difference = float((a - b).abs().max())
        assert math.isfinite(difference), f"{self.name} is not finite"
        return difference / max(float(a.abs().max()), self.least, 1e-300) if difference else 0.0


def layers(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The layers with weights or statistics, in order."""
    kinds = (*WEIGHTED, *NORMS, SyncBatchNorm)
    return [layer for module in modules for layer in module.modules() if isinstance(layer, kinds)]


def paired(theirs: Iterable[nn.Module], ours: Iterable[nn.Module]) -> list[tuple[nn.Module, nn.Module]]:
    """The layers of both sides, which must be of the same number and kinds."""
    pairs = list(zip(layers(theirs), layers(ours), strict=True))
    for a, b in pairs:
        same = all(isinstance(a, kind) == isinstance(b, kind) for kind in WEIGHTED)
        assert same, f"their {a} is where our {b} should be"
    return pairs


@torch.no_grad()
def copy_layers(theirs: Iterable[nn.Module], ours: Iterable[nn.Module]) -> None:
    """Give their layers our weights and statistics.

    A bias that only they have must be one that batch norm removes: it is set to 0.
    """
    for a, b in paired(theirs, ours):
        for name in (*WEIGHTS, *BUFFERS):
            x, y = getattr(a, name, None), getattr(b, name, None)
            if y is not None:
                assert x is not None, f"their {a} lacks the {name} of our {b}"
                x.copy_(y)
            elif x is not None:
                assert (name, type(a)) == ("bias", nn.Linear), f"only their {a} has a {name}"
                x.zero_()


def values(theirs: Iterable[nn.Module], ours: Iterable[nn.Module], names: tuple[str, ...]) -> Iterator[Pair]:
    """Weights or buffers of these names."""
    for i, (a, b) in enumerate(paired(theirs, ours)):
        for name in names:
            x, y = getattr(a, name, None), getattr(b, name, None)
            if x is not None and y is not None:
                # A running mean of 0 is measured by the running deviation.
                least = float(a.running_var.sqrt().max()) if name == "running_mean" else NEGLIGIBLE
                yield Pair(f"{i} {type(a).__name__}.{name}", x, y, least)


def gradients(theirs: Iterable[nn.Module], ours: Iterable[nn.Module]) -> Iterator[Pair]:
    """The gradients of all weights that both sides train."""
    pairs = paired(theirs, ours)
    found = [p.grad for a, _ in pairs for p in a.parameters(recurse=False) if p.grad is not None]
    largest = max(float(gradient.abs().max()) for gradient in found)
    for i, (a, b) in enumerate(pairs):
        for name in WEIGHTS:
            x, y = getattr(a, name, None), getattr(b, name, None)
            if x is not None and y is not None and (x.grad is not None or y.grad is not None):
                assert x.grad is not None, f"only our {b} has a gradient of its {name}"
                assert y.grad is not None, f"only their {a} has a gradient of its {name}"
                yield Pair(f"{i} {type(a).__name__}.{name}", x.grad, y.grad, NEGLIGIBLE * largest)
