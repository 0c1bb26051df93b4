"""Nearest neighbours and their votes, in blocks of queries and of the bank."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cl.runtime.distributed import gather, rank, ranks

QUERIES, ROWS = 256, 2**16  # size of a block of similarities, 64 MiB in float32
BUCKET = 8  # columns; the selection first compares the largest element of each bucket


def check_k(k: int, usable: int) -> None:
    """Raises ValueError if a bank has fewer than k usable rows."""
    if k > usable:
        raise ValueError(
            f"kNN with k={k} needs at least {k} labelled training images, found {usable}; choose a smaller k"
        )


def nearest(queries: Tensor, bank: Tensor, k: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """The k nearest rows of the bank for each query, in constant memory.

    Args:
        queries: (Q, D) unit rows.
        bank: (B, D) unit rows; float16 is converted block by block.

    Yields:
        A block of n queries, and the cosines and positions (n, k) of their nearest rows, nearest first.

    Raises:
        ValueError: the bank has fewer than k rows.
    """
    check_k(k, len(bank))
    dtype = torch.promote_types(torch.float32, torch.promote_types(queries.dtype, bank.dtype))
    # Allocated once: a new block's first write to each page would take a quarter of the time.
    memory = bank.new_empty(min(QUERIES, len(queries)) * min(ROWS, len(bank)), dtype=dtype)
    for start in range(0, len(queries), QUERIES):
        block = slice(start, min(start + QUERIES, len(queries)))
        rows = queries[block].to(dtype)
        cosines, positions = rows.new_empty(len(rows), 0), rows.new_empty(len(rows), 0, dtype=torch.int64)
        for first in range(0, len(bank), ROWS):
            part = bank[first : first + ROWS].to(dtype)
            similarity = memory[: len(rows) * len(part)].view(len(rows), len(part))
            torch.mm(rows, part.T, out=similarity)
            values, columns = largest(similarity, k)
            cosines = torch.cat([cosines, values], 1)
            positions = torch.cat([positions, columns + first], 1)
            if first:
                cosines, positions = _select(cosines, positions, k)
        yield block, cosines, positions


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of (n, m), or all m if fewer, in descending order, and their columns.

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
    return _select(x.gather(1, columns), columns, k)


def _select(values: Tensor, positions: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of each row, or all if fewer, in descending order, and their positions."""
    values, order = values.topk(min(k, values.shape[1]), dim=1)
    return values, positions.gather(1, order)


def vote(cosines: Tensor, labels: Tensor, classes: int, temperature: float) -> Tensor:
    """v_c = sum over the neighbours b of class c of exp((q . b - q . nearest) / temperature), (n, classes).

    The usual weights are divided by the nearest neighbour's, so that small temperatures do not overflow.

    Args:
        cosines: (n, k), nearest first.
        labels: (n, k) classes of these neighbours.
    """
    weight = ((cosines - cosines[:, :1]) / temperature).exp()
    return weight.new_zeros(len(cosines), classes).scatter_add_(1, labels, weight)


def classify(
    queries: Tensor,
    bank: Tensor,
    labels: Tensor,
    classes: int,
    *,
    k: Sequence[int],
    temperature: Sequence[float],
) -> Tensor:
    """The class with most votes for each k and temperature, in one pass; the ranks share the queries.

    Args:
        labels: (B,) classes of the bank; the other arguments as in `nearest`.

    Returns:
        Classes (len(k), len(temperature), Q).
    """
    per_rank = -(-len(queries) // ranks())
    local = slice(rank() * per_rank, (rank() + 1) * per_rank)
    answers = torch.zeros(per_rank, len(k) * len(temperature), dtype=torch.int64, device=queries.device)
    for rows, cosines, positions in nearest(queries[local], bank, max(k)):
        neighbours = labels[positions]
        votes = [
            vote(cosines[:, :count], neighbours[:, :count], classes, t).argmax(1)
            for count in k
            for t in temperature
        ]
        answers[rows] = torch.stack(votes, 1)
    answers = gather(answers)[: len(queries)]
    return answers.T.reshape(len(k), len(temperature), len(queries))


def top1(predicted: Tensor, labels: Tensor) -> float:
    """Percentage of (n,) predictions that equal the labels."""
    return 100 * float((predicted == labels).double().mean())
