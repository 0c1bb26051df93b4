"""The norm of the loss's gradient at a query, by the number of negatives, with and without EqCo's margin (EqCo, Fig. 4)."""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from cl.analyses import Context, Sample, counts_that_fit, samples
from cl.charts import Chart
from cl.strict import Strict


class Config(Strict):
    """`batches` of `batch_size` images give the queries; `negatives` are the numbers K that each draws.

    temperature: null for that of training.
    """

    kind: Literal["gradient_norm"]
    negatives: list[int] = Field(min_length=1)
    alpha: float = Field(gt=0)
    temperature: float | None = Field(gt=0)
    batch_size: int = Field(gt=1)
    batches: int = Field(gt=0)


def analyze(config: Config, context: Context) -> dict[str, float]:
    """Mean and standard deviation of the norm over queries, of InfoNCE with the margin (alpha) and without (alpha = K).

    The paper draws them by epoch of one training; here they are those of the finished encoder.

    Returns:
        margin_ratio and plain_ratio: the mean with the fewest negatives over that with the most.
    """
    temperature = config.temperature or context.method.temperature
    generator = torch.Generator().manual_seed(context.seed)
    found: dict[int, list[Tensor]] = {}
    for contrast in context.contrasts(config.batch_size, config.batches):
        found = found or {count: [] for count in counts_that_fit(config.negatives, contrast, context.progress)}
        for sample in samples(contrast, max(found), temperature, generator):
            for count, parts in found.items():
                parts.append(torch.stack([norms(sample, count, alpha, temperature) for alpha in (config.alpha, count)]))
    chart = Chart("norms", "Gradient at a query, finished encoder", "negatives", "norm, mean ± standard deviation", log=True)
    for count, parts in found.items():
        both = torch.cat(parts, 1)  # (2, N)
        deviations = both.std(1, correction=0).tolist()
        for label, mean, deviation in zip(_labels(config), both.mean(1).tolist(), deviations, strict=True):
            chart.add(label, count, mean, deviation)
    chart.save(context.out)
    margin, plain = chart.series.values()
    return {"margin_ratio": margin[0].y / margin[-1].y, "plain_ratio": plain[0].y / plain[-1].y}


def _labels(config: Config) -> tuple[str, str]:
    return f"with the margin, alpha {config.alpha:g}", "without"


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
