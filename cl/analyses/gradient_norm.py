"""Norm of the loss gradient at a query by number of negatives, with and without margin (EqCo, Fig. 4)."""

import math
from typing import Literal

import torch
from torch import Tensor

from cl.analyses import Context
from cl.analyses._shared.sampling import Sample, Sampling, by_count
from cl.report.charts import Chart
from cl.runtime.metric_info import MetricInfo


class Config(Sampling):
    """See `Sampling`.

    keys: the source of negatives: other images, encoded by the finished encoder; or the queue as training
        left it, so that only `queries` images are encoded.
    """

    kind: Literal["gradient_norm"]
    keys: Literal["images", "queue"]

    @property
    def needs_queue(self) -> bool:
        return self.keys == "queue"

    def numbers(self) -> dict[str, MetricInfo]:
        meaning = "mean gradient with the fewest negatives / with the most; 1: their number does not matter"
        return {
            "margin_ratio": MetricInfo("ratio with the margin", meaning),
            "plain_ratio": MetricInfo("ratio without the margin", meaning),
        }


def analyze(config: Config, context: Context) -> dict[str, float]:
    """Mean and standard deviation of the norm over queries, with margin (alpha) and without (alpha = K).

    The paper plots them by epoch; this measures the finished encoder.

    Returns:
        margin_ratio and plain_ratio: mean norm with the fewest negatives divided by that with the most.
    """
    chart = Chart(
        "norms",
        "Gradient at a query, finished encoder",
        "negatives",
        "norm, mean ± standard deviation",
        log=True,
    )
    labels = (f"with the margin, alpha {config.alpha:g}", "without")
    for count, measured in by_count(config, context, norms).items():
        for label, values in zip(labels, measured, strict=True):
            chart.add(label, count, values.mean(), values.std(correction=0))
    chart.save(context.out)
    margin, plain = chart.series.values()
    return {"margin_ratio": margin[0].y / margin[-1].y, "plain_ratio": plain[0].y / plain[-1].y}


def norms(sample: Sample, count: int, alpha: float, temperature: float) -> Tensor:
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
