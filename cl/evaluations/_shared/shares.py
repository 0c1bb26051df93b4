"""Predictions of a classifier: percentages of images, and the number of independent images behind them."""

import numpy as np
import torch
from scipy.special import ndtri, stdtrit
from torch import Tensor, nn

from cl.data.reader import Reader
from cl.features.groups import separated
from cl.runtime.metric_info import LEVEL, Share

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
    """The percentage of images (n,) bool that are correct.

    Args:
        positions: (n,), the images' positions in the index.
    """
    groups = None if reader.groups is None else reader.groups[positions]
    images = independent(correct.cpu().numpy().astype(float), groups)
    return Share(100 * float(correct.double().mean()), images)


def independent(correct: np.ndarray, groups: np.ndarray | None) -> float:
    """The number of independent images that would give the mean of `correct` the same 95 % interval.

    The delete-one-group jackknife replaces the variance p (1 - p) / n of independent images. Student's
    quantile replaces the normal one, with one degree of freedom less than there are groups of equal size
    (Korn and Graubard 1998, "Confidence intervals for proportions with small expected number of positive
    counts"). Groups of unequal size count as (sum of sizes)^2 / sum of squared sizes equal ones.

    Args:
        correct: (n,), 0 or 1.
        groups: (n,) int64; -1 for an image without a group, None if no image has one.

    Returns:
        At most n; 0 for a single group, which gives no interval.
    """
    n = len(correct)
    _, number = np.unique(separated(groups, n), return_inverse=True)
    sizes = np.bincount(number)
    if len(sizes) == n:
        return n
    equal = n**2 / (sizes**2).sum()
    if equal < 1 + 1e-9:
        return 0.0
    p = correct.mean()
    if 0 < p < 1:
        without = (correct.sum() - np.bincount(number, correct)) / (n - sizes)  # the mean without each group
        variance = (len(sizes) - 1) / len(sizes) * ((without - p) ** 2).sum()
        count = min(n, p * (1 - p) / variance) if variance else n
    else:
        count = equal  # equal answers do not show how much groups agree: assume full agreement
    side = (1 + LEVEL) / 2
    return float(count * (ndtri(side) / stdtrit(equal - 1, side)) ** 2)
