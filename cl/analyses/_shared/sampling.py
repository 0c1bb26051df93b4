"""Queries with random negatives."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cl.objective.terms import Contrast

BLOCK = 2**22  # logits in memory at a time: 16 MiB


class QueryBlock(NamedTuple):
    """A block of b queries of a contrast, each with its own K random negatives out of C."""

    queries: Tensor  # (b, D)
    positives: Tensor  # (b, D)
    negatives: Tensor  # (C, D)
    columns: Tensor  # (b, K), the rows of `negatives` drawn for each query, in random order
    positive_logits: Tensor  # (b,)
    negative_logits: Tensor  # (b, K)


def samples(
    contrast: Contrast, count: int, temperature: float, generator: torch.Generator, queries: int | None = None
) -> Iterator[QueryBlock]:
    """The first `queries` in blocks, each with `count` distinct random negatives and its first positive."""
    negatives, excluded = contrast.negatives.rows, contrast.negatives.excluded
    assert isinstance(negatives, Tensor), "an analysis has one process"
    for rows in torch.arange(len(contrast.queries))[:queries].split(max(1, BLOCK // len(negatives))):
        q, p = contrast.queries[rows], contrast.positives[rows, 0]
        priorities = torch.rand(len(rows), len(negatives), generator=generator)
        if excluded is not None:
            priorities.scatter_(1, excluded[rows].cpu(), 2.0)  # above all others, so never among the smallest
        columns = priorities.topk(count, largest=False).indices.to(q.device)
        positive_logits = (q * p).sum(1) / temperature
        negative_logits = (q @ negatives.T / temperature).gather(1, columns)
        yield QueryBlock(q, p, negatives, columns, positive_logits, negative_logits)


def feasible_counts(requested: list[int], available: int) -> list[int]:
    """The requested numbers of negatives up to `available`, ascending; ValueError if there are none."""
    feasible = [count for count in sorted(requested) if count <= available]
    if not feasible:
        raise ValueError(
            f"negatives={requested} exceed the {available} per query; choose fewer negatives or more images"
        )
    return feasible
