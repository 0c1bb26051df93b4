"""Norm of the loss gradient at a query, by number of negatives and epoch, and its bound (EqCo, Fig. 4)."""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor

from cl.analyses import AnalysisContext, BatchesConfig
from cl.console.wording import counted
from cl.data.reader import Reader
from cl.objective.terms import Contrast
from cl.report.charts import Chart
from cl.runtime.metric_info import MetricInfo

BLOCK = 2**22  # logits in memory at a time: 16 MiB


class QueryBlock(NamedTuple):
    """A block of b queries of a contrast, each with its own K random negatives out of C."""

    queries: Tensor  # (b, D)
    positives: Tensor  # (b, D)
    negatives: Tensor  # (C, D)
    columns: Tensor  # (b, K), the rows of `negatives` drawn for each query, in random order
    positive_logits: Tensor  # (b,)
    negative_logits: Tensor  # (b, K)


class Config(BatchesConfig):
    """How queries and negatives are sampled.

    negatives: the numbers K of negatives per query.
    temperature: null for training's.
    images: number of images; all give keys, the first of them queries.
    batch_size: images encoded at a time.
    keys: the source of negatives: other images, encoded by the encoder after the epoch; or the queue as it
        was then, so that only `queries` images are encoded.
    """

    kind: Literal["gradient_norm"]
    negatives: list[int] = Field(min_length=1)
    alpha: float = Field(gt=0)
    temperature: float | None = Field(gt=0)
    images: int = Field(gt=1)
    queries: int = Field(gt=0)
    keys: Literal["images", "queue"]

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

    @property
    def needs_queue(self) -> bool:
        return self.keys == "queue"

    def numbers(self) -> dict[str, MetricInfo]:
        meaning = "mean gradient with the fewest negatives / with the most; 1: their number does not matter"
        bound = "largest mean gradient with the margin / its bound, over epochs; at most 1 (EqCo, Theorem 2)"
        return {
            "margin_ratio": MetricInfo("ratio with the margin", meaning),
            "plain_ratio": MetricInfo("ratio without the margin", meaning),
            "bound_ratio": MetricInfo("ratio to the bound", bound),
        }


def analyze(config: Config, context: AnalysisContext) -> dict[str, float]:
    """Mean and standard deviation of the norm over queries, with margin (alpha) and without (alpha = K).

    One chart shows them with their bounds by K for the finished encoder; two others, with margin and without,
    by epoch, if `optim.keep_every` kept some.
    """
    axis = "norm, mean ± standard deviation"
    labels = (f"with the margin, alpha {config.alpha:g}", "without the margin")
    by_epoch = [
        Chart(name, f"Gradient at a query, {label}", "epoch", axis)
        for name, label in zip(("by_epoch_margin", "by_epoch_plain"), labels, strict=True)
    ]
    ratios = []
    for epoch, at_epoch in context.by_epoch():
        measured = by_count(config, at_epoch)
        for count, settings in measured.items():
            for chart, (norm, _) in zip(by_epoch, settings, strict=True):
                chart.add(counted(count, "negatives"), epoch, norm.mean(), norm.std(correction=0))
        bound = float(settings[0, 1].mean())  # the same for any number of negatives
        by_epoch[0].add("bound", epoch, bound)
        ratios.append(max(float(each[0, 0].mean()) for each in measured.values()) / bound)
    if context.kept:
        for chart in by_epoch:
            chart.save(context.out)
    finished = Chart("norms", "Gradient at a query, finished encoder", "negatives", axis, log=True)
    for count, settings in measured.items():
        for label, (norm, bound) in zip(labels, settings, strict=True):
            finished.add(label, count, norm.mean(), norm.std(correction=0))
            finished.add(f"bound {label}", count, bound.mean())
    finished.save(context.out)
    margin, _, plain, _ = ([point.y for point in points] for points in finished.series.values())
    return {
        "margin_ratio": margin[0] / margin[-1],
        "plain_ratio": plain[0] / plain[-1],
        "bound_ratio": max(ratios),
    }


def by_count(config: Config, context: AnalysisContext) -> dict[int, Tensor]:
    """By K: (2, 2, N), norms and bounds of N queries, with the margin and without it (alpha = K)."""
    temperature = context.temperature(config.temperature)
    generator = torch.Generator().manual_seed(context.seed)
    images = config.queries if config.needs_queue else config.images
    contrast = context.contrast(images, config.batch_size, queue=config.needs_queue)
    counts = feasible_counts(config.negatives, int(contrast.negative_counts[0]))
    measured: dict[int, list[Tensor]] = {count: [] for count in counts}
    for sample in samples(contrast, counts[-1], temperature, generator, config.queries):
        for count in counts:
            both = [
                torch.stack([norms(sample, count, alpha, temperature), bounds(sample, alpha, temperature)])
                for alpha in (config.alpha, count)
            ]
            measured[count].append(torch.stack(both))
    return {count: torch.cat(parts, -1) for count, parts in measured.items()}


def bounds(sample: QueryBlock, alpha: float, temperature: float) -> Tensor:
    """(b,): (2 / tau) (1 - s_0 / (s_0 + alpha E[s])), which bounds the expected norm (EqCo, eq. 7).

    E[s] is the mean of exp(q . k / tau) over all negatives drawn for the query, whatever K is.
    """
    expected = sample.negative_logits.logsumexp(1) - math.log(sample.negative_logits.shape[1])
    return (math.log(alpha) + expected - sample.positive_logits).sigmoid() * 2 / temperature


def norms(sample: QueryBlock, count: int, alpha: float, temperature: float) -> Tensor:
    """(b,): |dL/dq| of each query, not constrained to unit length, with its first K = `count` negatives.

    dL/dq = (-(1 - p_0) k_0 + sum_i p_i k_i) / tau with p_0 = s_0 / S, p_i = (alpha / K) s_i / S, s = exp(q .
    k / tau) and S = s_0 + (alpha / K) sum_i s_i (EqCo, eq. 11, whose printed second sum has s_0 for s_i). At
    most (2 / tau) (1 - p_0).
    """
    margin = math.log(alpha / count)
    logits = torch.cat([sample.positive_logits[:, None], sample.negative_logits[:, :count] + margin], 1)
    p = logits.softmax(1)  # (b, 1 + K)
    weights = p.new_zeros(len(p), len(sample.negatives)).scatter_(1, sample.columns[:, :count], p[:, 1:])
    gradient = weights @ sample.negatives - (1 - p[:, :1]) * sample.positives
    return gradient.norm(dim=1) / temperature


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
