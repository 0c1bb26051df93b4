"""Lower bound on the mutual information of two views, by number of negatives and epoch (EqCo, Fig. 1)."""

import math
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from cl.analyses import AnalysisContext
from cl.analyses._shared.sampling import QueryBlock, Sampling, by_count
from cl.console.wording import counted
from cl.losses import infonce
from cl.report.charts import Chart
from cl.runtime.metric_info import MetricInfo


class Config(Sampling):
    """See `Sampling`."""

    kind: Literal["mi_bound"]

    def numbers(self) -> dict[str, MetricInfo]:
        meaning = "nats that two views are known to share, for the largest number of negatives"
        return {
            "margin": MetricInfo("bound with the margin", meaning, "higher"),
            "plain": MetricInfo("bound without the margin", meaning, "higher"),
        }


def analyze(config: Config, context: AnalysisContext) -> dict[str, float]:
    """f(K) = log(1 + K e^(m / tau)) - L = log(1 + alpha) - L, nats, m = tau log(alpha / K) (EqCo, sec. 2.1).

    Without margin, alpha is K. The bound cannot exceed its first term. One chart shows it by K for the
    finished encoder; another shows it by epoch, with L from the training log and training's K, if the loss
    is InfoNCE and all of the method's terms are alike (in PIRL, CLD and Local Aggregation, they are not).
    The method provides the queries: in NNCLR, the nearest neighbours.

    Returns:
        margin and plain: the bound for the largest K, with and without the margin.
    """
    chart = Chart(
        "by_negatives", "Mutual information, finished encoder", "negatives", "lower bound, nats", log=True
    )
    for count, measured in by_count(config, context, bounds).items():
        margin, plain = measured.mean(1).tolist()
        chart.add(f"with the margin, alpha {config.alpha:g}", count, margin)
        chart.add("without", count, plain)
        chart.add("log(1 + negatives)", count, math.log1p(count))
    chart.save(context.out)
    _by_epoch(context).save(context.out)
    return {"margin": margin, "plain": plain}


def bounds(sample: QueryBlock, count: int, alpha: float, temperature: float) -> Tensor:
    """(b,): log(1 + alpha) - softplus(Z + log(alpha / K) - s), with the first K = `count` negatives."""
    negative = sample.negative_logits[:, :count].logsumexp(1) + math.log(alpha / count)
    return math.log1p(alpha) - F.softplus(negative - sample.positive_logits)


def _by_epoch(context: AnalysisContext) -> Chart:
    chart = Chart("by_epoch", "Mutual information in training", "epoch", "lower bound, nats")
    if isinstance(context.loss, infonce.Config) and (count := context.negatives()):
        alpha = context.loss.alpha or count
        for row in context.epochs:
            bound = math.log1p(alpha) - row["loss"] / context.scale
            chart.add(f"{counted(count, 'negatives')}, alpha {alpha:g}", row["epoch"], bound)
    return chart
