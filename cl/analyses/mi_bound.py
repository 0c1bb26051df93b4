"""The lower bound of mutual information of two views, by the number of negatives, with and without margin (EqCo, Fig. 1)."""

import math
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from cl.analyses import Context, Sample, Sampling, by_count
from cl.charts import Chart
from cl.losses import infonce


class Config(Sampling):
    """See `Sampling`."""

    kind: Literal["mi_bound"]


def analyze(config: Config, context: Context) -> dict[str, float]:
    """f(K) = log(1 + K e^(m / tau)) - L in nats, with m = tau log(alpha / K): log(1 + alpha) - L (EqCo, sec. 2.1).

    Without the margin alpha is K. A bound cannot exceed its first term. By K for the finished encoder; and by epoch from the
    training's log, where it was trained with InfoNCE: L is then the loss of each epoch and K that of training. What a query
    is, is the method's matter: NNCLR's is the nearest neighbour.

    Returns:
        margin and plain: the bound with the largest K, with and without the margin.
    """
    chart = Chart(
        "by_negatives", "Mutual information, finished encoder", "negatives", "lower bound, nats", log=True
    )
    for count, found in by_count(config, context, bounds).items():
        margin, plain = found.mean(1).tolist()
        chart.add(f"with the margin, alpha {config.alpha:g}", count, margin)
        chart.add("without", count, plain)
        chart.add("log(1 + negatives)", count, math.log1p(count))
    chart.save(context.out)
    _by_epoch(context).save(context.out)
    return {"margin": margin, "plain": plain}


def bounds(sample: Sample, count: int, alpha: float, temperature: float) -> Tensor:
    """(b,): log(1 + alpha) - softplus(Z + log(alpha / K) - s) of each query with the first K = `count` of its negatives."""
    negative = sample.logits[:, :count].logsumexp(1) + math.log(alpha / count)
    return math.log1p(alpha) - F.softplus(negative - sample.positive)


def _by_epoch(context: Context) -> Chart:
    chart = Chart("by_epoch", "Mutual information in training", "epoch", "lower bound, nats")
    if isinstance(context.loss, infonce.Config) and (count := context.negatives()):
        alpha = context.loss.alpha or count
        for row in context.epochs:
            chart.add(
                f"{count} negatives, alpha {alpha:g}",
                row["epoch"],
                math.log1p(alpha) - row["loss"] / context.scale,
            )
    return chart
