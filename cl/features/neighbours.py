"""The nearest rows of an array of features that may be larger than memory, exactly or with a FAISS index."""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cl.console.progress import Count, silent
from cl.features.knn import largest

QUERIES, ROWS = 256, 2**14  # size of a block of similarities, 16 MiB


def nearest(
    queries: np.ndarray, bank: np.ndarray, k: int, count: Count = silent
) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of the bank with the largest cosines for each query, nearest first.

    Of rows with equal cosines, the earlier comes first.

    The bank is read once, block by block, so it may be memory-mapped. Beside the result, memory does not
    depend on the number of queries and rows.

    Args:
        queries: (Q, D) of any length per row.
        bank: (N, D), likewise.
        count: shows the progress.

    Returns:
        Cosines (Q, k) float32 and positions (Q, k) int64.

    Raises:
        ValueError: a row is not finite, or the bank has fewer than k rows.
    """
    if not 1 <= k <= len(bank):
        raise ValueError(f"found {len(bank)} images for the {k} nearest; choose from 1 to {len(bank)}")
    cosines = torch.full((len(queries), k), -torch.inf)
    positions = torch.zeros(len(queries), k, dtype=torch.int64)
    memory = torch.empty(min(QUERIES, len(queries)) * min(ROWS, len(bank)))
    with count(len(bank), "images to search") as report:
        for first, rows in unit_blocks(bank, ROWS):
            for start, part in unit_blocks(queries, QUERIES):
                block = slice(start, start + len(part))
                similarity = memory[: len(part) * len(rows)].view(len(part), len(rows))
                torch.mm(part, rows.T, out=similarity)
                values, columns = _first_largest(similarity, k)
                values = torch.cat([cosines[block], values], 1)
                columns = torch.cat([positions[block], columns + first], 1)
                cosines[block], positions[block] = _descending(values, columns, k)
            report(len(rows))
    return cosines.clamp_(-1, 1).numpy(), positions.numpy()


def unit_blocks(features: np.ndarray, size: int) -> Iterator[tuple[int, Tensor]]:
    """Up to `size` rows at a time, float32 of length 1 (or 0), with the position of the first."""
    for start in range(0, len(features), size):
        rows = torch.from_numpy(np.array(features[start : start + size], np.float32))
        if not (finite := rows.isfinite().all(1)).all():
            row = start + int((~finite).nonzero()[0])
            raise ValueError(f"features in row {row} (counted from 0) are not finite; embed the images again")
        yield start, F.normalize(rows, dim=1)


def _first_largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of (n, m), or all m if fewer, and their columns; of equal ones the first."""
    values, columns = largest(x, min(k + 1, x.shape[1]))
    if values.shape[1] > k:
        for row in (values[:, k - 1] == values[:, k]).nonzero()[:, 0].tolist():
            larger = (x[row] > values[row, k]).nonzero()[:, 0]
            equal = (x[row] == values[row, k]).nonzero()[: k - len(larger), 0]
            columns[row, :k] = torch.cat([larger, equal])
    columns = columns[:, :k].sort(dim=1).values
    return _descending(x.gather(1, columns), columns, k)


def _descending(values: Tensor, columns: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The first k of each row in descending order of the values; equal values keep their order."""
    values, order = values.sort(dim=1, descending=True, stable=True)
    return values[:, :k], columns.gather(1, order[:, :k])
