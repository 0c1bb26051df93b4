"""Nearest neighbours and their votes, block by block within a bound on memory."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cl.runtime.distributed import gather, rank, ranks

MIN_ROWS = 512  # queries per block; the bank is tiled to allow at least this many, if it can be
BUCKET = 8  # columns of a tile that are reduced to their largest before the selection
SHOWN = 8  # neighbours of each query that `classify` returns
INT64 = 8  # bytes


def check_k(k: int, usable: int) -> None:
    """Raises ValueError if a bank has fewer than k usable rows."""
    if k > usable:
        raise ValueError(
            f"kNN with k={k} needs at least {k} labelled training images, found {usable}; choose a smaller k"
        )


def nearest(
    queries: Tensor, bank: Tensor, k: int, *, memory: int, others: int = 0, itself: Tensor | None = None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """The k nearest rows of the bank for each query, block by block, in bounded memory for any bank.

    Args:
        queries: (Q, D) unit rows.
        bank: (B, D) unit rows; if one of the two is float16, it is converted a part at a time.
        memory: bytes in use at a time besides queries, bank and results.
        others: bytes per query that the caller uses for a block.
        itself: (Q,) the position in the bank that is excluded for each query.

    Yields:
        The rows of a block of n queries, their cosines (n, k) and their positions in the bank (n, k), nearest
        first.

    Raises:
        ValueError: the bank has fewer than k rows, or the memory is too small for a single query.
    """
    check_k(k, len(bank) - (itself is not None))
    dtype = torch.promote_types(torch.float32, torch.promote_types(queries.dtype, bank.dtype))
    rows, columns = _block_size(queries, bank, k, dtype, memory, others)
    search = _Search(bank, k, dtype, min(rows, len(queries)), columns)
    for start in range(0, len(queries), rows):
        block = slice(start, min(start + rows, len(queries)))
        yield block, *search(queries[block].to(dtype), None if itself is None else itself[block])


def _block_size(
    queries: Tensor, bank: Tensor, k: int, dtype: torch.dtype, memory: int, others: int
) -> tuple[int, int]:
    """Queries per block and rows of the bank per tile that fit in `memory` bytes.

    The bank is tiled only as far as blocks of MIN_ROWS queries require.
    """
    converted_row = queries.shape[1] * dtype.itemsize
    per_column = converted_row if bank.dtype != dtype else 0
    share_of_largest = -(-dtype.itemsize // BUCKET)  # the largest similarity of each bucket is held too
    per_similarity = dtype.itemsize + share_of_largest
    candidates = (BUCKET + 4) * k  # the k best buckets; then the k found so far and k new ones, with copies
    per_query = others + candidates * (dtype.itemsize + INT64)
    if queries.dtype != dtype:
        per_query += converted_row

    affordable = (memory - MIN_ROWS * per_query) // (MIN_ROWS * per_similarity + per_column)
    columns = min(len(bank), max(k, affordable))
    rows = (memory - columns * per_column) // (columns * per_similarity + per_query)
    if rows < 1:
        least = math.ceil((columns * (per_similarity + per_column) + per_query) / 2**10)
        raise ValueError(
            f"memory={memory / 2**10:.0f}KiB is too little for one query: give {least}KiB or more"
        )
    return rows, columns


class _Search:
    """Finds the nearest rows of a bank, in tiles of `columns` rows, for blocks of at most `rows` queries."""

    def __init__(self, bank: Tensor, k: int, dtype: torch.dtype, rows: int, columns: int) -> None:
        self.bank, self.k, self.columns = bank, k, columns
        self.converted = bank.new_empty(columns if bank.dtype != dtype else 0, bank.shape[1], dtype=dtype)
        self.similarities = bank.new_empty(rows * columns, dtype=dtype)

    def __call__(self, queries: Tensor, itself: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cosines (n, k) and positions in the bank (n, k) of the nearest of each query, nearest first."""
        best: tuple[Tensor, Tensor] | None = None
        for first in range(0, len(self.bank), self.columns):
            similarity = self._similarity(queries, first)
            if itself is not None:
                _exclude(similarity, itself - first)
            cosines, columns = _largest(similarity, self.k)
            found = cosines, columns.add_(first)
            best = found if best is None else _merge(best, found, self.k)
        assert best is not None
        return best

    def _similarity(self, queries: Tensor, first: int) -> Tensor:
        """(n, m): cosines of the queries and a tile of the bank from row `first` on."""
        tile = self.bank[first : first + self.columns]
        if len(self.converted):
            tile = self.converted[: len(tile)].copy_(tile)
        out = self.similarities[: len(queries) * len(tile)].view(len(queries), len(tile))
        return torch.mm(queries, tile.T, out=out)


def _exclude(similarity: Tensor, columns: Tensor) -> None:
    """Set the column of each row, if it is in this tile, to -inf."""
    rows = ((columns >= 0) & (columns < similarity.shape[1])).nonzero()[:, 0]
    similarity[rows, columns[rows]] = -torch.inf


def _largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of (n, m), or all m if fewer, in descending order, and their columns.

    They are in the k buckets whose largest elements are largest: two small selections take half the time of a
    large one.
    """
    buckets = x.shape[1] // BUCKET
    if buckets < 2 * k:
        return x.topk(min(k, x.shape[1]), dim=1)
    covered = buckets * BUCKET
    # Bucket i holds the columns i, i + buckets, i + 2 buckets, ...
    largest = x[:, :covered].unflatten(1, (BUCKET, buckets)).amax(1)
    best = largest.topk(k, dim=1, sorted=False).indices
    columns = (best[:, :, None] + torch.arange(0, covered, buckets, device=x.device)).flatten(1)
    rest = torch.arange(covered, x.shape[1], device=x.device).expand(len(x), -1)
    columns = torch.cat([columns, rest], 1)
    return _select(x.gather(1, columns), columns, k)


def _merge(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of two selections, and their positions."""
    values, positions = (torch.cat(parts, 1) for parts in zip(first, second, strict=True))
    return _select(values, positions, k)


def _select(values: Tensor, positions: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of each row, or all if fewer, in descending order, and their positions."""
    values, order = values.topk(min(k, values.shape[1]), dim=1)
    return values, positions.gather(1, order)


def vote(cosines: Tensor, labels: Tensor, classes: int, temperature: float) -> Tensor:
    """v_c = sum over the neighbours b of class c of exp((q . b - q . nearest) / temperature), (n, classes).

    The usual weights divided by that of the nearest, so that no temperature overflows.

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
    """The class with most votes for each k and temperature, in one pass; the ranks share the queries.

    Args:
        labels: (B,) classes of the bank; the other arguments as in `nearest`.

    Returns:
        Classes (len(k), len(temperature), Q), and the positions in the bank of the nearest few (Q, at most
        SHOWN).
    """
    share = -(-len(queries) // ranks())
    mine = slice(rank() * share, (rank() + 1) * share)
    shown = min(SHOWN, max(k))
    answers = torch.zeros(share, len(k) * len(temperature) + shown, dtype=torch.int64, device=queries.device)
    others = 8 * (classes + 2 * max(k))  # the votes, and weights and labels of the neighbours
    excluded = None if itself is None else itself[mine]
    blocks = nearest(queries[mine], bank, max(k), memory=memory, others=others, itself=excluded)
    for rows, cosines, positions in blocks:
        neighbours = labels[positions]
        votes = [
            vote(cosines[:, :count], neighbours[:, :count], classes, t).argmax(1)
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
