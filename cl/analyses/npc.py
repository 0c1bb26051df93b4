"""The negative-positive-coupling multiplier of SimCLR's gradient, by batch size (DCL, Fig. 1)."""

import csv
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cl.analyses import Context, write_histogram
from cl.contrast import Contrast
from cl.strict import Strict

BINS = np.linspace(0, 1, 41)


class Config(Strict):
    """`anchors` is about how many anchors each batch size is measured on; `temperature` that of the loss that is looked at."""

    kind: Literal["npc"]
    batch_sizes: list[int] = Field(min_length=1, description="images a batch")
    anchors: int = Field(gt=0)
    temperature: float = Field(gt=0)


def analyze(config: Config, context: Context) -> dict[str, float]:
    """mean_<N> and variation_<N> (standard deviation / mean) of the multiplier for each batch size N, with tables."""
    metrics: dict[str, float] = {}
    values = {}
    for size in config.batch_sizes:
        batches = max(1, config.anchors // (2 * size))
        q = torch.cat([multiplier(first, second, config.temperature) for first, second in context.embeddings(size, batches)])
        metrics[f"mean_{size}"] = float(q.mean())
        metrics[f"variation_{size}"] = float(q.std() / q.mean())
        values[str(size)] = q.cpu().numpy()
    write_histogram(context.out / "histogram.csv", values, BINS)
    with (context.out / "multiplier.csv").open("w", newline="") as file:
        rows = [[size, metrics[f"mean_{size}"], metrics[f"variation_{size}"]] for size in config.batch_sizes]
        csv.writer(file).writerows([["batch_size", "mean", "variation"], *rows])
    return metrics


def multiplier(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """q_B = 1 - softmax probability of the positive = sigmoid(Z - s) of every anchor (DCL, eq. 2 and 3 as corrected).

    Args:
        first, second: (N, D) unit embeddings of the two views.

    Returns:
        (2N,), in (0, 1): what the decoupled loss removes from SimCLR's gradient.
    """
    embeddings = torch.cat([first, second])
    itself = torch.arange(len(embeddings), device=embeddings.device)
    other = itself.roll(len(first))
    contrast = Contrast(
        embeddings, embeddings[other, None], embeddings, torch.stack([itself, other], 1), temperature=temperature
    )
    return torch.sigmoid(contrast.negative_log_partition() - contrast.positive_logits()[:, 0])
