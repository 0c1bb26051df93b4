"""Predictions of a classifier: percentages of images, and the number of independent images behind them."""

import numpy as np
import torch
from torch import Tensor, nn

from cl.data.reader import Reader
from cl.runtime.metric_info import Share
from cl.statistics import independent

LOGITS = 2**26  # of a block of images, 256 MiB in float32


@torch.no_grad()
def classify(head: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
    """The classes with the largest logit (n,) and with the five largest (n, 5), for features (n, D).

    Fewer than five classes give (n, classes). Blocks of images keep the memory for logits constant.
    """
    first: list[Tensor] = []
    five: list[Tensor] = []
    classes = len(head(features[:1])[0])
    for block in features.split(max(1, LOGITS // classes)):
        logits = head(block)  # (images, classes)
        first.append(logits.argmax(1))
        five.append(logits.topk(min(5, classes), dim=1).indices)
    return torch.cat(first), torch.cat(five)


def share(correct: Tensor, reader: Reader, positions: np.ndarray) -> Share:
    """The percentage of images (n,), at these positions of the index (n,), that are correct."""
    groups = None if reader.groups is None else reader.groups[positions]
    images = independent(correct.cpu().numpy().astype(float), groups)
    return Share(100 * float(correct.double().mean()), images)
