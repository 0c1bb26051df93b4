"""The norm of the loss's gradient at a query, by the number of negatives, with and without EqCo's margin (EqCo, Fig. 4)."""

import math
from typing import Literal

import torch
from torch import Tensor

from cl.analyses import Context, Sample, Sampling, by_count
from cl.charts import Chart


class Config(Sampling):
    """See `Sampling`."""

    kind: Literal["gradient_norm"]


def analyze(config: Config, context: Context) -> dict[str, float]:
    """Mean and standard deviation of the norm over queries, of InfoNCE with the margin (alpha) and without (alpha = K).

    The paper draws them by epoch of one training; here they are those of the finished encoder.

    Returns:
        margin_ratio and plain_ratio: the mean with the fewest negatives over that with the most.
    """
    chart = Chart(
        "norms",
        "Gradient at a query, finished encoder",
        "negatives",
        "norm, mean ± standard deviation",
        log=True,
    )
    for count, found in by_count(config, context, norms).items():
        for label, own in zip((f"with the margin, alpha {config.alpha:g}", "without"), found, strict=True):
            chart.add(label, count, own.mean(), own.std(correction=0))
    chart.save(context.out)
    margin, plain = chart.series.values()
    return {"margin_ratio": margin[0].y / margin[-1].y, "plain_ratio": plain[0].y / plain[-1].y}


def norms(sample: Sample, count: int, alpha: float, temperature: float) -> Tensor:
    """(b,): |dL/dq| of each unit query taken as free, with the first K = `count` of its negatives.

    dL/dq = (-(1 - p_0) k_0 + sum_i p_i k_i) / tau with p_0 = s_0 / S, p_i = (alpha / K) s_i / S, s = exp(q . k / tau) and
    S = s_0 + (alpha / K) sum_i s_i (EqCo, eq. 11, whose printed second sum has s_0 for s_i). At most (2 / tau) (1 - p_0).
    """
    margin = math.log(alpha / count)
    logits = torch.cat([sample.positive[:, None], sample.logits[:, :count] + margin], 1)
    p = logits.softmax(1)  # (b, 1 + K)
    weights = p.new_zeros(len(p), len(sample.negatives)).scatter_(1, sample.columns[:, :count], p[:, 1:])
    gradient = weights @ sample.negatives - (1 - p[:, :1]) * sample.positives
    return gradient.norm(dim=1) / temperature
