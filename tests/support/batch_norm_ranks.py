"""Batch norm in several processes, in float64, and what it gives by definition."""

from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cl.networks import _sync_batch_norm
from cl.networks.batch_norm import GroupBatchNorm, update_running_stats
from cl.runtime.distributed import rank, ranks
from tests.support.processes import run_ranks

IMAGES, CHANNELS = 24, 3


class Case(NamedTuple):
    """shares: the fraction of the images that each rank has; none for equal ones.

    to_rows: whether the images need a gradient; those behind a frozen layer do not.
    """

    groups: int
    affine: bool = True
    spatial: tuple[int, ...] = (3, 2)
    layout: torch.memory_format = torch.channels_last
    shares: tuple[float, ...] = ()
    to_rows: bool = True


CASES = {
    "one group": Case(1),
    "one group, contiguous": Case(1, layout=torch.contiguous_format),
    "one group, unequal": Case(1, shares=(0.25, 0.75)),
    "three groups": Case(3),
    "three groups, without weight": Case(3, affine=False),
    "three groups of vectors": Case(3, spatial=()),
    "one group of vectors, without weight": Case(1, affine=False, spatial=()),
    "one group, rows without gradient": Case(1, to_rows=False),
    "four groups": Case(4),
    "four groups, contiguous, without weight": Case(4, affine=False, layout=torch.contiguous_format),
}


class Collectives(TorchDispatchMode):
    """Counts the exchanges between ranks in a block."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += function.namespace == "c10d"
        return function(*args, **(kwargs or {}))


def images_of(case: Case) -> tuple[Tensor, Tensor]:
    """All ranks' images, far from 0, and the gradient of the loss with respect to what they become."""
    rng = torch.Generator().manual_seed(1)
    shape = (IMAGES, CHANNELS, *case.spatial)
    x, g = (torch.randn(shape, generator=rng, dtype=torch.float64) for _ in range(2))
    layout = case.layout if case.spatial else torch.contiguous_format
    return (x * 2 + 5).contiguous(memory_format=layout), g + 0.5


def norm_of(case: Case) -> GroupBatchNorm:
    """A batch norm with a state and parameters of its own."""
    rng = torch.Generator().manual_seed(2)
    norm = nn.BatchNorm2d(CHANNELS, eps=0.01, momentum=0.3, affine=case.affine).double()
    for tensor in (norm.running_mean, norm.running_var, *norm.parameters()):
        tensor.data.copy_(torch.rand(CHANNELS, generator=rng) + 0.5)
    return GroupBatchNorm(norm, case.groups)


def rows_of(case: Case) -> slice:
    """This rank's rows."""
    edges = torch.tensor(case.shares or [1 / ranks()] * ranks()).mul(IMAGES).round().int().cumsum(0).tolist()
    return slice(*[0, *edges][rank() : rank() + 2])


def computed(case: Case) -> dict[str, Any]:
    """Of this rank: rows and their gradient, gradients of parameters, running statistics, exchanges."""
    norm, (x, g) = norm_of(case), images_of(case)
    x, g = (t[rows_of(case)].clone() for t in (x, g))
    x.requires_grad_(case.to_rows)
    with Collectives() as collectives:
        y = norm(x)
        y.backward(g)
    update_running_stats(norm)
    return {
        "rows": [y.detach(), *([x.grad] if case.to_rows else [])],
        "parameters": [p.grad for p in norm.parameters()],
        "state": [norm.running_mean, norm.running_var],
        "collectives": collectives.count,
    }


def expected(case: Case) -> dict[str, list[Tensor]]:
    """The same of all ranks together, group by group."""
    norm, (x, g) = norm_of(case), images_of(case)
    x.requires_grad_()
    over, shape = [0, *range(2, x.ndim)], (1, -1, *[1] * (x.ndim - 2))
    weight, bias = (norm.weight, norm.bias) if case.affine else (torch.ones(CHANNELS), torch.zeros(CHANNELS))
    parts, means, variances = [], [], []
    for part in x.chunk(case.groups):
        mean = part.mean(over, keepdim=True)
        square = (part - mean).square().mean(over, keepdim=True)
        parts.append((part - mean) / (square + 0.01).sqrt() * weight.view(shape) + bias.view(shape))
        count = part.numel() / CHANNELS
        means.append(mean.flatten().detach())
        variances.append(square.flatten().detach() * count / (count - 1))
    y = torch.cat(parts)
    y.backward(g)
    states = zip((norm.running_mean, norm.running_var), (means, variances), strict=True)
    return {
        "rows": [y.detach(), *([x.grad] if case.to_rows else [])],
        "parameters": [p.grad for p in norm.parameters()],
        "state": [0.7 * old + 0.3 * torch.stack(new).mean(0) for old, new in states],
    }


def _work(number: int, form: str, folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    _sync_batch_norm.usable = lambda x: form == "kernels"
    store = f"file://{folder}/store of {number} {form}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=number)
    cases = {name: case for name, case in CASES.items() if len(case.shares) in (0, number)}
    torch.save({name: computed(case) for name, case in cases.items()}, folder / f"{number} {form} {rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def run(folder: Path) -> None:
    """Compute all cases on two and four processes, by the kernels and by the reference."""
    for number, form in product((2, 4), ("kernels", "reference")):
        run_ranks(number, _work, number, form, folder)


def of_ranks(number: int, form: str, folder: Path) -> dict[str, dict[str, Any]]:
    """What `number` processes computed: rows one after the other, gradients of parameters added up."""
    found = [torch.load(folder / f"{number} {form} {rank}.pt") for rank in range(number)]
    return {name: _joined([each[name] for each in found]) for name in found[0]}


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    for part in parts:
        assert all(map(torch.equal, part["state"], parts[0]["state"])), "ranks differ"
    return {
        "rows": [torch.cat(rows) for rows in zip(*(part["rows"] for part in parts), strict=True)],
        "parameters": [sum(each) for each in zip(*(part["parameters"] for part in parts), strict=True)],
        "state": parts[0]["state"],
        "collectives": max(part["collectives"] for part in parts),
    }
