"""Nearest neighbours and their votes, exactly, in blocks of queries and of the bank."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cl.console.progress import Count, silent
from cl.runtime.distributed import gather, rank, ranks

QUERIES, ROWS = 256, 2**16  # size of a block of similarities, 64 MiB in float32
READ = 2**14  # rows of an array in a block
BUCKET = 8  # columns; the selection first compares the largest element of each bucket


def check_k(k: int, usable: int) -> None:
    """Raises ValueError if a bank has fewer than k usable rows."""
    if k > usable:
        raise ValueError(f"k={k} needs at least {k} labelled training images, found {usable}; lower k")


def nearest(queries: Tensor, bank: Tensor, k: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """The k nearest of the bank's unit rows (B, D) for each of the unit rows (Q, D), in constant memory.

    Yields blocks of n queries, with the cosines and positions (n, k) of their nearest rows, nearest first; of
    rows with equal cosines, the earlier comes first. A float16 bank is converted block by block.
    """
    check_k(k, len(bank))
    dtype = torch.promote_types(torch.float32, torch.promote_types(queries.dtype, bank.dtype))
    # Allocated once: a new block's first write to each page would take a quarter of the time.
    memory = bank.new_empty(min(QUERIES, len(queries)) * min(ROWS, len(bank)), dtype=dtype)
    for start in range(0, len(queries), QUERIES):
        block = slice(start, min(start + QUERIES, len(queries)))
        rows = queries[block].to(dtype)
        best = rows.new_empty(len(rows), 0), rows.new_empty(len(rows), 0, dtype=torch.int64)
        for first in range(0, len(bank), ROWS):
            best = _extended(best, rows, bank[first : first + ROWS].to(dtype), first, k, memory)
        yield block, *best


def nearest_in_array(
    queries: np.ndarray, bank: np.ndarray, k: int, count: Count = silent
) -> tuple[np.ndarray, np.ndarray]:
    """Cosines (Q, k) float32 and positions (Q, k) int64 as in `nearest`, for arrays larger than memory.

    The bank (N, D), which may be memory-mapped, is read once, block by block; beside the result, memory does
    not depend on the numbers of rows. Those of queries (Q, D) and bank are finite, and of any length.
    """
    cosines, positions = torch.empty(len(queries), k), torch.empty(len(queries), k, dtype=torch.int64)
    memory = torch.empty(min(QUERIES, len(queries)) * min(READ, len(bank)))
    with count(len(bank), "images to search") as report:
        for first, rows in unit_blocks(bank, READ):
            known, width = min(first, k), min(first + len(rows), k)
            for start, part in unit_blocks(queries, QUERIES):
                block = slice(start, start + len(part))
                best = cosines[block, :known], positions[block, :known]
                best = _extended(best, part, rows, first, k, memory)
                cosines[block, :width], positions[block, :width] = best
            report(len(rows))
    return cosines.clamp_(-1, 1).numpy(), positions.numpy()


def unit_blocks(features: np.ndarray, size: int) -> Iterator[tuple[int, Tensor]]:
    """Up to `size` rows at a time, float32 of length 1 (or 0), with the position of the first."""
    for start in range(0, len(features), size):
        rows = torch.from_numpy(np.array(features[start : start + size], np.float32))
        yield start, F.normalize(rows, dim=1)


def _extended(
    best: tuple[Tensor, Tensor], queries: Tensor, rows: Tensor, first: int, k: int, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """The `best` cosines and positions of n queries, up to k, with those of the rows at `first` and after it.

    memory: for at least n len(rows) similarities.
    """
    similarity = memory[: len(queries) * len(rows)].view(len(queries), len(rows))
    torch.mm(queries, rows.T, out=similarity)
    cosines, columns = largest(similarity, k)
    if not first:
        return cosines, columns
    return _descending(torch.cat([best[0], cosines], 1), torch.cat([best[1], columns + first], 1), k)


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of (n, m), or all m if fewer, in descending order, and their columns.

    Of equal ones, the first.
    """
    k = min(k, x.shape[1])
    values, columns = _largest(x, k + 1)
    equal = values[:, 1:] == values[:, :-1]
    values, columns = values[:, :k], columns[:, :k]
    if not equal.any():  # nothing else makes the CPU wait for a GPU
        return values, columns
    rows = equal[:, k - 1 :].any(1).nonzero()[:, 0]  # where equal ones are left out
    columns[rows] = _first_columns(x[rows], values[rows, -1:], k)
    columns = columns.sort(dim=1).values
    return _descending(x.gather(1, columns), columns, k)


def _largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `largest`; of equal ones, any.

    They lie in the k buckets with the largest maxima; two small selections are faster than a large one.
    """
    buckets = x.shape[1] // BUCKET
    if buckets < 2 * k:
        return x.topk(min(k, x.shape[1]), dim=1)
    covered = buckets * BUCKET
    # Bucket i holds the columns i, i + buckets, i + 2 buckets, ...
    best = x[:, :covered].unflatten(1, (BUCKET, buckets)).amax(1).topk(k, dim=1, sorted=False).indices
    columns = (best[:, :, None] + torch.arange(0, covered, buckets, device=x.device)).flatten(1)
    rest = torch.arange(covered, x.shape[1], device=x.device).expand(len(x), -1)
    columns = torch.cat([columns, rest], 1)
    values, order = x.gather(1, columns).topk(k, dim=1)
    return values, columns.gather(1, order)


def _first_columns(x: Tensor, least: Tensor, k: int) -> Tensor:
    """The columns (n, k) of the elements of (n, m) above `least` (n, 1), and of the first equal to it."""
    larger, equal = ~(x <= least), x == least  # NaN counts as larger, as in topk
    chosen = larger | (equal & (equal.cumsum(1, dtype=torch.int32) <= k - larger.sum(1, keepdim=True)))
    return chosen.nonzero()[:, 1].view(len(x), k)


def _descending(values: Tensor, columns: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The first k of each row in descending order of the values; equal values keep their order."""
    values, order = values.sort(dim=1, descending=True, stable=True)
    return values[:, :k], columns.gather(1, order[:, :k])


def vote(cosines: Tensor, labels: Tensor, classes: int, temperature: float) -> Tensor:
    """v_c = sum over the neighbours b of class c of exp((q . b - q . nearest) / temperature), (n, classes).

    The usual weights are divided by the nearest neighbour's, so that small temperatures do not overflow.
    `cosines` and the `labels` of these neighbours are (n, k), nearest first.
    """
    weight = ((cosines - cosines[:, :1]) / temperature).exp()
    return weight.new_zeros(len(cosines), classes).scatter_add_(1, labels, weight)


def classify(
    queries: Tensor, bank: Tensor, labels: Tensor, classes: int, *, k: Sequence[int], temperature: float
) -> Tensor:
    """(len(k), Q): the class with most votes for each k, in one pass.

    The ranks share the queries. `labels` (B,) are of the bank; other arguments as in `nearest`.
    """
    per_rank = -(-len(queries) // ranks())
    local = slice(rank() * per_rank, (rank() + 1) * per_rank)
    answers = torch.zeros(per_rank, len(k), dtype=torch.int64, device=queries.device)
    for rows, cosines, positions in nearest(queries[local], bank, max(k)):
        neighbours = labels[positions]
        for column, count in enumerate(k):
            votes = vote(cosines[:, :count], neighbours[:, :count], classes, temperature)
            answers[rows, column] = votes.argmax(1)
    return gather(answers)[: len(queries)].T


def top1(predicted: Tensor, labels: Tensor) -> float:
    """Percentage of (n,) predictions that equal the labels."""
    return 100 * float((predicted == labels).double().mean())
