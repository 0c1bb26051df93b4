"""k-means, a few rows at a time."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cl.runtime.distributed import gather, rank, ranks
from cl.runtime.machine import to_device

DISTANCES = 2**24  # between rows and centres, held at a time
ROUNDING = 64  # by how many units in the last place equal distances may differ


@torch.no_grad()
def nearest_centre(rows: Tensor, centres: Tensor) -> Tensor:
    """(N,) int64: the nearest of the centres (k, D) to each row (N, D), of length at most 1.

    Of equally near centres, the first: equal rows may be centres, and rounding must not decide.
    """
    with torch.autocast(rows.device.type, enabled=False):  # in bfloat16, near centres would tie
        squares = centres.square().sum(1)
        blocks = rows.split(max(1, DISTANCES // len(centres)))
        return torch.cat([_first_minimum(torch.addmm(squares, x, centres.T, alpha=-2)) for x in blocks])


def _first_minimum(x: Tensor) -> Tensor:
    """(N,): the first column in each row whose number is the smallest up to rounding."""
    tied = x <= x.amin(1, keepdim=True) + ROUNDING * torch.finfo(x.dtype).eps
    return tied.byte().argmax(1)


def means(rows: Tensor, labels: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """The mean of each cluster's rows (k, D), 0 for an empty cluster, and the number of rows (k,)."""
    counts = rows.new_zeros(clusters).index_add(0, labels, rows.new_ones(len(rows)))
    sums = rows.new_zeros(clusters, rows.shape[1]).index_add(0, labels, rows)
    return sums / counts.clamp(min=1)[:, None], counts


def batch_clusters(rows: Tensor, clusters: int, iterations: int) -> tuple[Tensor, Tensor]:
    """k-means as CLD runs it on a batch: the gradient flows through the last means only.

    It starts from the first k rows. The centre of an empty cluster is 0. With fewer rows than clusters, each
    row is a cluster, and the other centres are 0. Returns the centres (k, D), means of unit rows and not
    normalised, and each row's cluster (N,).
    """
    centres = F.pad(rows[:clusters].detach(), (0, 0, 0, max(0, clusters - len(rows))))
    for _ in range(iterations):
        labels = nearest_centre(rows, centres)
        centres, _ = means(rows, labels, clusters)
    return centres, labels


@torch.no_grad()
def cluster(rows: Tensor, clusters: int, iterations: int, generator: torch.Generator) -> Tensor:
    """(N,) int64: each row's cluster. Starts from random rows; an empty cluster keeps its centre."""
    centres = rows[to_device(torch.randperm(len(rows), generator=generator)[:clusters], rows.device)]
    for _ in range(iterations):
        new, counts = means(rows, nearest_centre(rows, centres), clusters)
        centres = torch.where(counts[:, None] > 0, new, centres)
    return nearest_centre(rows, centres)


def clusterings(rows: Tensor, clusters: int, iterations: int, generators: list[torch.Generator]) -> Tensor:
    """(H, N) int64: one clustering for each generator, the same for any number of ranks.

    Each is computed on one rank, so that rounding on a GPU cannot make ranks disagree.
    """
    count = len(generators)
    share = -(-count // ranks())
    numbers = [min(rank() * share + number, count - 1) for number in range(share)]  # this rank's clusterings
    labels = torch.stack([cluster(rows, clusters, iterations, generators[number]) for number in numbers])
    return gather(labels)[:count]
