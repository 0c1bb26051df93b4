"""What a classifier says of images: percentages, and how many independent images these count."""

import numpy as np
import torch
from scipy.stats import norm, t
from torch import Tensor, nn

from cl.data.reader import Reader
from cl.runtime.metric_info import Share

LEVEL = 0.95
LOGITS = 2**26  # of a block of images, 256 MiB in float32


@torch.no_grad()
def classify(head: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
    """The class (n,) with the largest logit, and the five (n, 5) with the largest, for features (n, D).

    In blocks, so that the memory does not grow with images times classes; all classes if there are fewer.
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
        positions: (n,) of the images in the index.
    """
    images: float = len(correct)
    if reader.groups is not None:
        images = independent(correct.cpu().numpy().astype(float), reader.groups[positions])
    return Share(100 * float(correct.double().mean()), images)


def independent(correct: np.ndarray, groups: np.ndarray) -> float:
    """How many independent images would give the mean of `correct` the same 95 % interval.

    The variance p (1 - p) / n of independent images is replaced by that of the delete-one-group jackknife,
    and the normal quantile by Student's with one degree of freedom less than there are groups of equal size
    (Korn and Graubard 1998, "Confidence intervals for proportions with small expected number of positive
    counts"). Groups of unequal size count as (sum of sizes)^2 / sum of squared sizes equal ones.

    Args:
        correct: (n,) of 0 and 1.
        groups: (n,) int64; -1 marks an image that belongs to no group.

    Returns:
        At most n; 0 for a single group, which gives no interval.
    """
    n, alone = len(correct), groups < 0
    own = np.where(alone, -1 - np.arange(n), groups)
    _, number = np.unique(own, return_inverse=True)
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
        count = equal  # no image says how much its group agrees: assume that it does in full
    side = (1 + LEVEL) / 2
    return float(count * (norm.ppf(side) / t.ppf(side, equal - 1)) ** 2)
