"""Whether one encoder is better than another on the same images: paired differences with intervals."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from cl.console.wording import counted

HALVES, BLOCK = 10_000, 500  # random halves of the images; at a time
TAIL = 0.025  # of the halves beyond each end of an interval
FEWEST = 5  # groups that an interval needs
MOST = 4096  # groups that are halved one by one
SEEN = 2.80  # standard errors of a difference whose interval excludes 0 in 80 of 100 cases
DIGITS = 9  # of percentage points; more are rounding
OVERALL = "mean"


@dataclass(frozen=True)
class Row:
    """A measure of A and of B in percent, and B - A in points with its 95 % interval."""

    measure: str
    a: float
    b: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Encoder B against encoder A.

    rows: one for each measure, and, of several, their mean at the end. The last one decides.
    images: number of validation images.
    groups: number of independent groups of them; `images` if they have no groups.
    detectable: the true difference of the mean, in points, that would be seen in 80 of 100 cases.
    """

    rows: list[Row]
    images: int
    groups: int
    detectable: float

    @property
    def overall(self) -> Row:
        """The mean of all measures, or the only one."""
        return self.rows[-1]

    @property
    def verdict(self) -> Literal["better", "worse", "cannot tell"]:
        """What B is: whether the interval of the mean is above 0, below it, or contains it."""
        if self.overall.low > 0:
            return "better"
        return "worse" if self.overall.high < 0 else "cannot tell"

    def sentence(self, a: str = "A", b: str = "B") -> str:
        """The verdict about encoders of these names, with numbers."""
        row = self.overall
        within = f"[{row.low:.1f}, {row.high:.1f}]"
        if self.verdict != "cannot tell":
            return f"{b} is {self.verdict} than {a} by {abs(row.difference):.1f} points {within}"
        known = f"cannot tell whether {b} is better than {a}"
        if self.groups < FEWEST:
            return f"{known}: the images are of {counted(self.groups, 'groups')}, expected at least {FEWEST}"
        if row.low == row.high:
            return f"{known}: no difference on {counted(self.images, 'images')}"
        return (
            f"{known}: {row.difference:+.1f} points {within}; with {counted(self.images, 'images')}, a "
            f"difference of about {self.detectable:.1f} points would be seen"
        )


def judge(scores: dict[str, np.ndarray], groups: np.ndarray | None = None, *, seed: int = 0) -> Comparison:
    """Whether B scores higher than A, by whatever measures. The intervals are for other images like these.

    Args:
        scores: for each measure, percentages (M, 2) of each image by A and by B.
        groups: (M,) names or numbers, equal for images that are not independent; None if all images are.
        seed: of the random halves.
    """
    each, names = np.stack(list(scores.values())), list(scores)
    if len(names) > 1:
        each, names = np.concatenate([each, each.mean(0, keepdims=True)]), [*names, OVERALL]  # (S, M, 2)
    differences = (each[..., 1] - each[..., 0]).T  # (M, S)
    _, group = np.unique(np.arange(len(differences)) if groups is None else groups, return_inverse=True)
    means, known = means_of_halves(differences, group, seed), int(group.max()) + 1
    intervals = [interval(column) if known >= FEWEST else (-100.0, 100.0) for column in means.T]
    percents, mean = each.mean(1).tolist(), differences.mean(0).tolist()  # (S, 2) and (S,)
    rows = [
        Row(measure, a, b, difference, low, high)
        for measure, (a, b), difference, (low, high) in zip(names, percents, mean, intervals, strict=True)
    ]
    return Comparison(rows, len(differences), known, SEEN * float(means[:, -1].std()))


def means_of_halves(differences: np.ndarray, group: np.ndarray, seed: int) -> np.ndarray:
    """The mean of the differences (M, S) over each of many random halves of the groups, (H, S).

    A group is in a half with probability 1/2. Neither the order of the images nor which encoder is A matters.

    Args:
        group: (M,) from 0.
    """
    rng = np.random.default_rng(seed)
    sign = -1 if differences[:, -1].sum() < 0 else 1
    columns = np.ones(len(group)), *(sign * differences.T)
    sums = np.stack([np.bincount(group, column) for column in columns], 1)  # (G, 1 + S), sizes first
    sums = sums[np.lexsort(sums.round(DIGITS).T)]
    if len(sums) > MOST:
        bundle = rng.permutation(len(sums)) % MOST
        sums = np.stack([np.bincount(bundle, column) for column in sums.T], 1)
    halves = [rng.integers(0, 2, (BLOCK, len(sums)), np.uint8) @ sums for _ in range(HALVES // BLOCK)]
    total = np.concatenate(halves)
    total = total[total[:, 0] > 0]
    return sign * (total[:, 1:] / total[:, :1]).round(DIGITS)


def interval(means: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a difference, from its means over random halves (Hartigan 1969, typical values).

    It contains the differences that a test by random signs does not reject: if B and A were exchangeable, the
    difference of every group could as well have the other sign. The share of signs that give a larger sum is
    the share of halves with a mean below 0. Equal sums count half (mid-p), so that the test rejects in 5 % of
    cases, not less, if few images differ. An end that is rejected itself is moved inwards by the rounding.
    """
    values, counts = np.unique(means, return_counts=True)
    return _least(values, counts), 0.0 - _least(-values[::-1], counts[::-1])  # 0.0, not -0.0


def _least(values: np.ndarray, counts: np.ndarray) -> float:
    """The lower end for ascending values with these counts."""
    first = int((counts.cumsum() >= TAIL * counts.sum()).argmax())
    rejected = counts[:first].sum() + counts[first] / 2 < TAIL * counts.sum()
    return float(values[first] + rejected * 10.0**-DIGITS)
