"""How similar two views of one image are, and views of different images."""

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from cl.analyses import Context, write_histogram
from cl.strict import Strict

BINS = np.linspace(-1, 1, 81)


class Config(Strict):
    """`batches` of `batch_size` images, two views each."""

    kind: Literal["similarity"]
    batch_size: int = Field(gt=1)
    batches: int = Field(gt=0)


def analyze(config: Config, context: Context) -> dict[str, float]:
    """Mean cosine of positive pairs (two views of an image) and of negative pairs (views of two images), with histograms."""
    positive, negative = [], []
    for first, second in context.embeddings(config.batch_size, config.batches):
        cosines = first @ second.T  # (N, N)
        diagonal = torch.eye(len(cosines), dtype=torch.bool, device=cosines.device)
        positive.append(cosines[diagonal])
        negative.append(cosines[~diagonal])
    cosines_of = {"positive": torch.cat(positive), "negative": torch.cat(negative)}
    values = {name: cosines.clamp(-1, 1).cpu().numpy() for name, cosines in cosines_of.items()}
    write_histogram(context.out / "histogram.csv", values, BINS)
    return {f"{name}_mean": float(cosines.mean()) for name, cosines in values.items()}
