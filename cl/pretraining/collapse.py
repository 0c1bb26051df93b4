"""Whether embeddings collapse to a point (complete collapse) or to few dimensions (dimensional collapse).

The verdict on a whole pretraining reads its log, without labels. The epoch to use is the last one:
docs/results/selection.md compares this with other rules.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

BLOCK = 2**24  # similarities held at a time: 64 MiB
SPREAD = 0.02  # least standard deviation; below it, the mean squared distance of two images is under 0.001
DIMENSIONS = 0.01  # least effective rank, as a fraction of the width
OF_IMAGES = 0.2  # a least effective rank that few images cannot reach is lowered to this fraction of them
FEWEST = 5  # epochs that show a collapse or a trend: embeddings may start at one point and leave it
LINE = 2.0  # least effective rank of any width; below it, embeddings are nearly on a line
MEASURE = "effective_rank"  # whose trend the verdict tests
END = 0.25  # the last fraction of the run, whose trend is tested
LEVEL = 0.05  # significance level of the test

Rows = Sequence[Mapping[str, Any]]


@torch.no_grad()
def measures(embeddings: Tensor) -> dict[str, float]:
    """How the embeddings (N, D) of N images, unit rows, are distributed on the sphere.

    uniformity: log of the mean over pairs i != j of exp(-2 |x_i - x_j|^2) (Wang and Isola 2020); 0 when all
        are equal, about -4 when spread evenly.
    embedding_std: mean over coordinates of the standard deviation, times sqrt(D) (SimSiam 2021); 0 when all
        are equal, 1 when spread evenly.
    effective_rank: exp of the entropy of the singular values, as fractions of their sum (RankMe, Garrido et
        al. 2023, eq. 1, without its 1e-7, since 0 log 0 is 0 here); between 1 and min(N, D).

    Raises:
        FloatingPointError: embeddings are not finite.
    """
    embeddings = embeddings.float()
    if not embeddings.isfinite().all():
        raise FloatingPointError("the embeddings became NaN or infinite; lower optim.base_lr")
    singular = torch.linalg.svdvals(embeddings).double()
    return {
        "uniformity": _uniformity(embeddings),
        "embedding_std": float(embeddings.std(0, correction=0).mean()) * math.sqrt(embeddings.shape[1]),
        "effective_rank": float(torch.special.entr(singular / singular.sum()).sum().exp()),
    }


def _uniformity(embeddings: Tensor) -> float:
    """Takes each pair once, block by block; for unit rows, |x - y|^2 = 2 - 2 x . y."""
    n = len(embeddings)
    total = torch.zeros((), dtype=torch.float64, device=embeddings.device)
    rows = max(1, BLOCK // n)
    for start in range(0, n, rows):
        similarity = embeddings[start : start + rows] @ embeddings[start:].T  # (rows, n - start)
        total += similarity.mul_(4).sub_(4).exp_().triu_(1).sum(1).double().sum()
    return float((2 * total / (n * (n - 1))).log())


def alarm(
    measures: dict[str, float], width: int, images: float = math.inf, *, negatives: bool = False
) -> str | None:
    """The sentence to show if embeddings of this width have collapsed, otherwise None.

    images: how many embeddings were measured; their effective rank is at most this number.
    """
    spread, rank = measures["embedding_std"], measures["effective_rank"]
    least = min(max(LINE, DIMENSIONS * width), OF_IMAGES * images)
    if spread < SPREAD:
        found = (
            f"complete collapse: all embeddings are nearly equal, embedding_std is {spread:.3f} "
            f"(expected: {SPREAD} to 1)"
        )
    elif rank < least:
        found = (
            f"dimensional collapse: the embeddings span few of their {width} dimensions, effective_rank is "
            f"{rank:.1f} (expected: {least:.1f} or more)"
        )
    else:
        return None
    return f"{found}; if this lasts, stop and {remedy(negatives=negatives)}"


def remedy(*, negatives: bool) -> str:
    """What to change after a collapse of a method with or without negatives."""
    last = "weaken the augmentation" if negatives else "choose a method and loss with negatives"
    return f"lower optim.base_lr, lengthen optim.warmup_epochs, or {last}"


class Verdict(NamedTuple):
    """The state of a run, and a sentence for the user."""

    state: Literal["unknown", "collapsed", "still improving", "finished"]
    sentence: str


def verdict(rows: Rows, width: int, images: float = math.inf, *, negatives: bool = False) -> Verdict:
    """The verdict on a run from its rows in epochs.csv, without the columns that need labels.

    Collapsed: the alarm for embeddings of this width is on at the end. Still
    improving: MEASURE rises in the last quarter of the epochs (Mann's test of Kendall's tau, 1945). Fewer
    than FEWEST epochs show neither: embeddings may start at one point and leave it later.

    Args:
        images: how many images were measured.
        negatives: whether the method has any, which decides the advice after a collapse.
    """
    last = int(rows[-1]["epoch"])
    if len(rows) < FEWEST:
        sentence = f"too short to tell whether the encoder still improves (at least {FEWEST} epochs)"
        return Verdict("unknown", sentence)
    if first := _collapsed_since(rows, width, images):
        advice = remedy(negatives=negatives)
        sentence = f"the embeddings collapsed in epoch {first} and did not recover; {advice}"
        return Verdict("collapsed", sentence)
    from scipy.stats import kendalltau  # late: slow to import

    end = [float(row[MEASURE]) for row in rows[-max(FEWEST, round(END * len(rows))) :]]
    if kendalltau(range(len(end)), end, alternative="greater").pvalue < LEVEL:
        longer = f"train longer, for example with -S optim.epochs={2 * len(rows)}"
        rises = "its embeddings spread over more and more dimensions"
        return Verdict("still improving", f"still improving at epoch {last}, the last ({rises}); {longer}")
    rests = "its embeddings spread over no more dimensions than before"
    return Verdict("finished", f"finished at epoch {last}, the last: {rests}")


def _collapsed_since(rows: Rows, width: int, images: float) -> int | None:
    """The epoch since which the alarm has been on without a break; None if it is off in the last."""
    since = None
    for row in reversed(rows):
        measures = {name: float(row[name]) for name in ("embedding_std", "effective_rank")}
        if not alarm(measures, width, images):
            break
        since = int(row["epoch"])
    return since
