"""Votes of nearest neighbours, block by block."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cl.runtime.distributed import gather, rank, ranks

ROWS = 512  # queries of a block at the least, where the bank can be cut so
GROUP = 8
SHOWN = 8  # neighbours of each query that `classify` returns


def nearest(
    queries: Tensor, bank: Tensor, k: int, *, memory: int, others: int = 0, itself: Tensor | None = None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """The k nearest of the bank for each query, block by block, within a bound on memory whatever the bank.

    Args:
        queries: (Q, D) unit rows.
        bank: (B, D) unit rows; where one of both is float16, it is converted piece by piece.
        memory: bytes held at a time beside queries, bank and answers.
        others: bytes that whoever takes the blocks holds for each query.
        itself: (Q,) the position in the bank that does not count for a query.

    Yields:
        The rows of a block of n queries, their cosines (n, k) and their positions in the bank (n, k), nearest first.

    Raises:
        ValueError: the bank is smaller than k, or the memory too small for a single query.
    """
    usable = len(bank) - (itself is not None)
    if k > usable:
        raise ValueError(f"kNN with k={k} needs as many labelled training images, there are {usable}")
    dtype = torch.promote_types(torch.float32, torch.promote_types(queries.dtype, bank.dtype))
    size, width = dtype.itemsize, queries.shape[1]
    # Held for a query: its similarities and the largest of each group; of those chosen, and found before, positions and values.
    column, fixed = size + -(-size // GROUP), others + (4 + GROUP) * k * (size + 8)
    fixed += width * size if queries.dtype != dtype else 0
    converted = width * size if bank.dtype != dtype else 0
    columns = min(len(bank), max(k, (memory - ROWS * fixed) // (ROWS * column + converted)))
    rows = (memory - converted * columns) // (columns * column + fixed)
    if rows < 1:
        least = math.ceil((columns * (column + converted) + fixed) / 2**10)
        raise ValueError(
            f"memory={memory / 2**10:.0f}KiB is too little for one query: give {least}KiB or more"
        )
    piece = bank.new_empty(columns if converted else 0, width, dtype=dtype)
    space = bank.new_empty(min(rows, len(queries)) * columns, dtype=dtype)
    for start in range(0, len(queries), rows):
        block = slice(start, min(start + rows, len(queries)))
        asked = queries[block].to(dtype)
        found = None
        for first in range(0, len(bank), columns):
            part = bank[first : first + columns]
            part = piece[: len(part)].copy_(part) if converted else part
            similarity = torch.mm(
                asked, part.T, out=space[: len(asked) * len(part)].view(len(asked), len(part))
            )
            if itself is not None:
                own = itself[block] - first
                here = ((own >= 0) & (own < len(part))).nonzero()[:, 0]
                similarity[here, own[here]] = -torch.inf
            values, positions = _largest(similarity, k)
            positions += first
            if found is not None:
                values, positions = _chosen(
                    torch.cat([found[0], values], 1), torch.cat([found[1], positions], 1), k
                )
            found = values, positions
        assert found is not None
        yield block, *found


def _largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of (n, m) or all, in order, and where they stand.

    They are in the k groups whose own largest are largest: two small selections take half the time of a large one.
    """
    groups = x.shape[1] // GROUP
    if groups < 2 * k:
        return x.topk(min(k, x.shape[1]), dim=1)
    whole = groups * GROUP
    largest = (
        x[:, :whole].unflatten(1, (GROUP, groups)).amax(1)
    )  # of each group: i, i + groups, i + 2 groups, ...
    best = largest.topk(k, dim=1, sorted=False).indices
    positions = (best[:, :, None] + torch.arange(0, whole, groups, device=x.device)).flatten(1)
    rest = torch.arange(whole, x.shape[1], device=x.device).expand(len(x), -1)
    positions = torch.cat([positions, rest], 1)
    return _chosen(x.gather(1, positions), positions, k)


def _chosen(values: Tensor, positions: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of each row or all, in order, and their positions."""
    values, order = values.topk(min(k, values.shape[1]), dim=1)
    return values, positions.gather(1, order)


def vote(cosines: Tensor, labels: Tensor, classes: int, temperature: float) -> Tensor:
    """v_c = sum over a query's neighbours b of class c of exp((q . b - q . nearest) / temperature), (n, classes).

    The usual weights over that of the nearest, so that no temperature overflows.

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
    memory: int,
    itself: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The class with most votes for each k and temperature, in one pass; the ranks of a run share the queries.

    Args:
        labels: (B,) of the bank. The rest as `nearest` takes it.

    Returns:
        Classes (len(k), len(temperature), Q), and the positions in the bank of the nearest few (Q, at most SHOWN).
    """
    share = -(-len(queries) // ranks())
    mine = slice(rank() * share, (rank() + 1) * share)
    shown = min(SHOWN, max(k))
    answers = torch.zeros(share, len(k) * len(temperature) + shown, dtype=torch.int64, device=queries.device)
    others = 8 * (classes + 2 * max(k))
    found = nearest(
        queries[mine],
        bank,
        max(k),
        memory=memory,
        others=others,
        itself=None if itself is None else itself[mine],
    )
    for rows, cosines, positions in found:
        votes = [
            vote(cosines[:, :count], labels[positions[:, :count]], classes, t).argmax(1)
            for count in k
            for t in temperature
        ]
        answers[rows] = torch.cat([torch.stack(votes, 1), positions[:, :shown]], 1)
    answers = gather(answers)[: len(queries)]
    predicted = answers[:, :-shown].T.reshape(len(k), len(temperature), len(queries))
    return predicted, answers[:, -shown:]


def top1(predicted: Tensor, labels: Tensor) -> float:
    """Percentage of (n,) predictions that equal the labels."""
    return 100 * float((predicted == labels).float().mean())
