"""The negative-positive-coupling multiplier of SimCLR's gradient, by batch size (DCL, Fig. 1)."""

from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cl.analyses import AnalysisConfig, AnalysisContext, as_numpy
from cl.data.order import Plan, reduced
from cl.data.reader import Reader
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from cl.report.charts import Chart, histogram
from cl.runtime.metric_info import MetricInfo


class Config(AnalysisConfig):
    """`anchors`: approximate number of anchors per batch size; temperature: null for training's."""

    kind: Literal["npc"]
    batch_sizes: list[int] = Field(min_length=1, description="images per batch")
    anchors: int = Field(gt=0)
    temperature: float | None = Field(gt=0)

    def check(self, train: Reader, val: Reader) -> None:
        Plan(len(train), max(self.batch_sizes), seed=0)  # refuses a batch larger than the split

    def for_few_images(self, train: Reader, val: Reader) -> Self:
        sizes = [size for size in self.batch_sizes if size <= len(train)]
        return self.model_copy(update={"batch_sizes": sizes or [reduced(min(self.batch_sizes), len(train))]})

    def numbers(self) -> dict[str, MetricInfo]:
        mean = "factor by which SimCLR scales its gradient; 1: not scaled down"
        variation = "how much the multiplier differs between images: standard deviation / mean"
        easy = "percent of its sum at the quarter of views with the most similar positives; DCL: 25"
        infos = {}
        for size in (min(self.batch_sizes), max(self.batch_sizes)):
            infos[f"mean_{size}"] = MetricInfo(f"mean multiplier, batches of {size}", mean, "higher")
            infos[f"variation_{size}"] = MetricInfo(f"its variation, batches of {size}", variation, "lower")
            infos[f"easy_{size}"] = MetricInfo(f"its share on easy pairs, batches of {size}", easy, "higher")
        return infos


def analyze(config: Config, context: AnalysisContext) -> dict[str, float]:
    """Of q_B, for the smallest and largest batch N: mean_<N>, variation_<N> and easy_<N>."""
    chart = Chart("multiplier", "SimCLR's gradient multiplier", "images per batch", "multiplier", log=True)
    temperature = context.temperature(config.temperature)
    values, metrics = {}, {}
    for size in config.batch_sizes:
        batches = list(context.embeddings(size, max(1, config.anchors // (2 * size))))
        q = as_numpy([multiplier(first, second, temperature) for first, second in batches])
        similarity = as_numpy([(first * second).sum(1).repeat(2) for first, second in batches])
        chart.add("mean", size, q.mean())
        chart.add("standard deviation / mean", size, q.std() / q.mean())
        values[f"{size} images"] = q
        if size in (min(config.batch_sizes), max(config.batch_sizes)):
            metrics[f"mean_{size}"] = float(q.mean())
            metrics[f"variation_{size}"] = float(q.std() / q.mean())
            metrics[f"easy_{size}"] = easy_share(q, similarity)
    chart.save(context.out)
    single = histogram("multipliers", "Multipliers of single anchors", "NPC multiplier", values, (0, 1))
    single.save(context.out)
    return metrics


def easy_share(q: np.ndarray, similarity: np.ndarray) -> float:
    """Percent of the sum of q (n,) at the quarter of anchors with the largest similarity (n,)."""
    easiest = np.argsort(-similarity, kind="stable")[: max(1, len(q) // 4)]
    return float(100 * q[easiest].sum() / q.sum())


def multiplier(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """(2N,) in (0, 1): what the decoupled loss removes from the gradient of SimCLR, per anchor.

    q_B = 1 - softmax probability of the positive = sigmoid(Z - s) (DCL, eq. 2, 3 corrected). `first` and
    `second`: (N, D) unit embeddings of the two views.
    """
    embeddings = torch.cat([first, second])
    itself = torch.arange(len(embeddings), device=embeddings.device)
    other = itself.roll(len(first))
    negatives = Negatives(embeddings, excluded=torch.stack([itself, other], 1))
    contrast = Contrast(embeddings, embeddings[other, None], negatives, temperature)
    return torch.sigmoid(contrast.negative_log_partition() - contrast.positive_logits()[:, 0])
