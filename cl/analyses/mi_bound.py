"""The lower bound of mutual information of two views, by the number of negatives, with and without margin (EqCo, Fig. 1)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cl.analyses import Context, Sample, counts_that_fit, samples
from cl.charts import Chart
from cl.losses import infonce
from cl.strict import Strict


class Config(Strict):
    """`batches` of `batch_size` images give the queries; `negatives` are the numbers K that each draws.

    temperature: null for that of training.
    """

    kind: Literal["mi_bound"]
    negatives: list[int] = Field(min_length=1)
    alpha: float = Field(gt=0)
    temperature: float | None = Field(gt=0)
    batch_size: int = Field(gt=1)
    batches: int = Field(gt=0)


def analyze(config: Config, context: Context) -> dict[str, float]:
    """f(K) = log(1 + K e^(m / tau)) - L in nats, with m = tau log(alpha / K): log(1 + alpha) - L (EqCo, sec. 2.1).

    Without the margin alpha is K. A bound cannot exceed its first term. By K for the finished encoder; and by epoch from the
    training's log, where it was trained with InfoNCE: L is then the loss of each epoch and K that of training.

    Returns:
        margin and plain: the bound with the largest K, with and without the margin.
    """
    temperature = config.temperature or context.method.temperature
    generator = torch.Generator().manual_seed(context.seed)
    found: dict[int, list[Tensor]] = {}
    for contrast in context.contrasts(config.batch_size, config.batches):
        found = found or {count: [] for count in counts_that_fit(config.negatives, contrast, context.progress)}
        for sample in samples(contrast, max(found), temperature, generator):
            for count, parts in found.items():
                parts.append(torch.stack([bounds(sample, count, alpha) for alpha in (config.alpha, count)]))
    chart = Chart("by_negatives", "Mutual information, finished encoder", "negatives", "lower bound, nats", log=True)
    for count, parts in found.items():
        margin, plain = torch.cat(parts, 1).mean(1).tolist()
        chart.add(f"with the margin, alpha {config.alpha:g}", count, margin)
        chart.add("without", count, plain)
        chart.add("log(1 + negatives)", count, math.log1p(count))
    chart.save(context.out)
    _by_epoch(context).save(context.out)
    return {"margin": margin, "plain": plain}


def bounds(sample: Sample, count: int, alpha: float) -> Tensor:
    """(b,): log(1 + alpha) - softplus(Z + log(alpha / K) - s) of each query with the first K = `count` of its negatives."""
    negative = sample.logits[:, :count].logsumexp(1) + math.log(alpha / count)
    return math.log1p(alpha) - F.softplus(negative - sample.positive)


def _by_epoch(context: Context) -> Chart:
    chart = Chart("by_epoch", "Mutual information in training", "epoch", "lower bound, nats")
    if isinstance(context.loss, infonce.Config):
        alpha = context.loss.alpha or float(next(context.contrasts(context.batch_size, 1)).negative_counts()[0])
        for row in context.epochs:
            chart.add(f"alpha {alpha:g}", row["epoch"], math.log1p(alpha) - row["loss"] / context.scale)
    return chart
