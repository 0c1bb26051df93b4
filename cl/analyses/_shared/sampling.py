"""Queries with given numbers of random negatives."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor

from cl.analyses import AnalysisContext, BatchesConfig
from cl.console.wording import counted
from cl.data.reader import Reader
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


class Sampling(BatchesConfig):
    """How queries and negatives are sampled.

    negatives: the numbers K of negatives per query.
    temperature: null for training's.
    images: number of images; all give keys, the first of them queries.
    batch_size: images encoded at a time.
    """

    negatives: list[int] = Field(min_length=1)
    alpha: float = Field(gt=0)
    temperature: float | None = Field(gt=0)
    images: int = Field(gt=1)
    queries: int = Field(gt=0)

    def check(self, train: Reader, val: Reader) -> None:
        super().check(train, val)
        if self.images > (epoch := len(train) // self.batch_size * self.batch_size):
            raise ValueError(
                f"images={self.images} exceeds the {counted(epoch, 'images')} of an epoch of batches of "
                f"{self.batch_size}; choose fewer"
            )
        feasible_counts(self.negatives, self.images - 1)

    def for_few_images(self, train: Reader, val: Reader) -> Self:
        fewer = super().for_few_images(train, val)
        images = min(self.images, len(train) // fewer.batch_size * fewer.batch_size)
        negatives = [count for count in self.negatives if count < images] or [images - 1]
        queries = min(self.queries, images)
        return fewer.model_copy(update={"images": images, "queries": queries, "negatives": negatives})


def by_count(
    config: Sampling, context: AnalysisContext, measure: Callable[[QueryBlock, int, float, float], Tensor]
) -> dict[int, Tensor]:
    """`measure(sample, K, alpha, temperature)`, (..., b), of N queries for each K.

    Returns:
        By K: (2, ..., N), with the margin and without it (alpha = K).
    """
    temperature = context.temperature(config.temperature)
    generator = torch.Generator().manual_seed(context.seed)
    images = config.queries if config.needs_queue else config.images
    contrast = context.contrast(images, config.batch_size, queue=config.needs_queue)
    available = int(contrast.negative_counts[0])
    counts = feasible_counts(config.negatives, available)
    measured: dict[int, list[Tensor]] = {count: [] for count in counts}
    for sample in samples(contrast, counts[-1], temperature, generator, config.queries):
        for count in counts:
            with_margin = measure(sample, count, config.alpha, temperature)
            without = measure(sample, count, count, temperature)
            measured[count].append(torch.stack([with_margin, without]))
    return {count: torch.cat(parts, -1) for count, parts in measured.items()}


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
