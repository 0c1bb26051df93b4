"""How certain a number is: 95 % intervals over images, groups and seeds, and paired differences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit  # scipy.stats takes long to import

from cl.console.wording import counted
from cl.runtime.metric_info import LEVEL, Measurement

HALVES, BLOCK = 10_000, 500  # random halves of the images; at a time
TAIL = 0.025  # of the halves beyond each end of a 95 % interval
FEWEST = 5  # groups that an interval needs
MOST = 4096  # groups that are halved one by one
SEEN = 0.80  # of the cases in which a detectable difference has an interval without 0
DIGITS = 9  # of percentage points; more are rounding
OVERALL = "mean"


class Interval(NamedTuple):
    """From `low` to `high`, in percent or percentage points."""

    low: float
    high: float

    def overlaps(self, other: "Interval") -> bool:
        """Whether the intervals intersect."""
        return self.low <= other.high and other.low <= self.high

    def __str__(self) -> str:
        return f"[{self.low:.1f}, {self.high:.1f}]"


class Estimate(NamedTuple):
    """A mean over `n` seeds with its uncertainty."""

    mean: float
    sd: float | None  # standard deviation over the seeds; None for a single seed
    n: int
    interval: Interval | None = None  # the 95 % interval of the mean, if known
    names: tuple[str, ...] = ()  # the averaged experiments
    images: float | None = None  # independent ones that it counts; 0 if all are of one group, None for none

    @property
    def number(self) -> str:
        """The mean ± the standard deviation."""
        return f"{self.mean:.1f}" + ("" if self.sd is None else f" ± {self.sd:.1f}")

    def __str__(self) -> str:
        return f"{self.number} {self.within}".rstrip()

    @property
    def within(self) -> str:
        """The interval, or why there is none if groups are the reason."""
        if self.interval:
            return str(self.interval)
        return "(one group of images: no interval)" if self.images == 0 else ""


def estimate(measured: Sequence[Measurement], names: Sequence[str] = ()) -> Estimate:
    """The mean of repeated measurements; a single one keeps its deviation over its evaluation's seeds."""
    values = [each.mean for each in measured]
    mean, sd, n, images = measured[0].mean, measured[0].sd, measured[0].n, measured[0].images
    if len(values) > 1:
        mean, sd, n = fmean(values), stdev(values), len(values)
    return Estimate(mean, sd, n, interval(mean, images, sd, n), tuple(names), images)


def difference(ours: Estimate, other: Estimate) -> Estimate:
    """`ours` minus `other`: independent errors, so deviations and interval sides add in quadrature."""
    mean, within = ours.mean - other.mean, None
    sd = None if ours.sd is None or other.sd is None else math.hypot(ours.sd, other.sd)
    if ours.interval and other.interval:
        below = math.hypot(ours.mean - ours.interval.low, other.interval.high - other.mean)
        above = math.hypot(ours.interval.high - ours.mean, other.mean - other.interval.low)
        within = Interval(mean - below, mean + above)
    return Estimate(mean, sd, min(ours.n, other.n), within, (*ours.names, *other.names))


def interval(
    percent: float,
    images: float | None,
    sd: float | None = None,
    seeds: int = 1,
    *,
    level: float = LEVEL,
) -> Interval | None:
    """The interval of a mean over seeds; None for a single group of images, or if images and seeds give none.

    Wilson's interval of the binomial and Student's interval of the mean over seeds are independent errors, so
    their distances from the mean add in quadrature.

    Args:
        images: number of independent images behind the percentage, possibly fractional if images of a group
            agree; None for other numbers, such as an average precision.
        sd: standard deviation over the seeds.
        level: how often the interval of the images contains the truth.
    """
    over_seeds = 0.0 if sd is None or seeds == 1 else _over_seeds(sd, seeds)
    if not images and (images == 0 or sd is None or seeds == 1):
        return None
    low = high = percent
    if images:
        images = max(images, 1e-99)  # the square of less would overflow
        z = float(ndtri((1 + level) / 2))
        shrinkage = 1 + z**2 / images
        centre = (percent + 50 * z**2 / images) / shrinkage
        half = z * math.sqrt(percent * (100 - percent) / images + (50 * z / images) ** 2) / shrinkage
        low, high = min(percent, centre - half), max(percent, centre + half)
    below, above = math.hypot(percent - low, over_seeds), math.hypot(high - percent, over_seeds)
    return Interval(max(0.0, percent - below), min(100.0, percent + above))


def interval_of_mean(values: list[float]) -> Interval | None:
    """Student's interval of the mean of independent values; None for fewer than two."""
    if len(values) < 2:
        return None
    half = _over_seeds(stdev(values), len(values))
    return Interval(fmean(values) - half, fmean(values) + half)


def _over_seeds(sd: float, seeds: int) -> float:
    """Half the width of Student's interval of a mean."""
    return float(stdtrit(seeds - 1, (1 + LEVEL) / 2)) * sd / math.sqrt(seeds)


def mean_and_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the standard deviation if there are several values."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def separated(groups: np.ndarray | None, images: int) -> np.ndarray:
    """(N,) int64: the groups, with a group of its own for each image that has none (-1, or no `groups`)."""
    numbers = np.arange(images)
    return numbers if groups is None else np.where(groups < 0, -1 - numbers, groups)


def inflation(folds: int) -> float:
    """How much larger the variance of an accuracy by cross-validation is, as folds share training images.

    1 + k / (k - 1) for k folds (Nadeau and Bengio 2003, Inference for the generalization error).
    """
    return 1 + folds / (folds - 1)


def independent(correct: np.ndarray, groups: np.ndarray | None, *, level: float = LEVEL) -> float:
    """The number of independent images that would give the mean of `correct` the same interval.

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
    side = (1 + level) / 2
    return float(count * (ndtri(side) / stdtrit(equal - 1, side)) ** 2)


@dataclass(frozen=True)
class MeasureDifference:
    """A measure of A and of B in percent, and B - A in points with its interval."""

    measure: str
    a: float
    b: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedComparison:
    """Encoder B against encoder A.

    rows: one for each measure, and, of several, their mean at the end. The last one decides.
    images: number of validation images.
    groups: number of independent groups of them; `images` if they have no groups.
    detectable: the true difference of the mean, in points, that would be seen in 80 of 100 cases.
    """

    rows: list[MeasureDifference]
    images: int
    groups: int
    detectable: float

    @property
    def overall(self) -> MeasureDifference:
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


def judge(
    scores: dict[str, np.ndarray], groups: np.ndarray | None = None, *, seed: int = 0, tail: float = TAIL
) -> PairedComparison:
    """Whether B scores higher than A, by whatever measures. The intervals are for other images like these.

    Args:
        scores: for each measure, percentages (M, 2) of each image by A and by B.
        groups: (M,) names or numbers, equal for images that are not independent; None if all images are.
        seed: of the random halves.
        tail: how often the truth may be beyond each end of an interval; less for several comparisons.
    """
    each, names = np.stack(list(scores.values())), list(scores)
    if len(names) > 1:
        each, names = np.concatenate([each, each.mean(0, keepdims=True)]), [*names, OVERALL]  # (S, M, 2)
    differences = (each[..., 1] - each[..., 0]).T  # (M, S)
    _, group = np.unique(np.arange(len(differences)) if groups is None else groups, return_inverse=True)
    means, known = means_of_halves(differences, group, seed), int(group.max()) + 1
    unknown = None if known >= FEWEST else (-100.0, 100.0)
    intervals = [unknown or interval_of_halves(column, tail) for column in means.T]
    percents, mean = each.mean(1).tolist(), differences.mean(0).tolist()  # (S, 2) and (S,)
    rows = [
        MeasureDifference(measure, a, b, difference, low, high)
        for measure, (a, b), difference, (low, high) in zip(names, percents, mean, intervals, strict=True)
    ]
    errors = float(ndtri(1 - tail) + ndtri(SEEN))
    return PairedComparison(rows, len(differences), known, errors * float(means[:, -1].std()))


def means_of_halves(differences: np.ndarray, group: np.ndarray, seed: int) -> np.ndarray:
    """The mean of the differences (M, S) over each of many random halves of the groups (M,), (H, S).

    A group is in a half with probability 1/2. Neither the order of the images nor which encoder is A matters:
    A and B are swapped if that gives the larger sorted sums; on a tie, both signs are returned, (2 H, S).
    """
    rng = np.random.default_rng(seed)
    columns = np.ones(len(group)), *differences.T
    sums = np.stack([np.bincount(group, column) for column in columns], 1)  # (G, 1 + S), sizes first
    mirrored = np.r_[1, -np.ones(differences.shape[1])] * sums
    sums, mirrored = (rows[np.lexsort(rows.round(DIGITS).T)] for rows in (sums, mirrored))
    difference = (sums - mirrored).round(DIGITS)
    first = next(iter(difference[difference != 0]), 0)  # 0: they are equal
    sign, sums = (-1, mirrored) if first < 0 else (1, sums)
    if len(sums) > MOST:
        bundle = rng.permutation(len(sums)) % MOST
        sums = np.stack([np.bincount(bundle, column) for column in sums.T], 1)
    halves = [rng.integers(0, 2, (BLOCK, len(sums)), np.uint8) @ sums for _ in range(HALVES // BLOCK)]
    total = np.concatenate(halves)
    total = total[total[:, 0] > 0]
    means = sign * (total[:, 1:] / total[:, :1]).round(DIGITS)
    return means if first else np.concatenate([means, -means])


def interval_of_halves(means: np.ndarray, tail: float = TAIL) -> tuple[float, float]:
    """The interval of a difference, from its means over random halves (Hartigan 1969, typical values).

    It contains the differences that a test by random signs does not reject: if B and A were exchangeable, the
    difference of every group could as well have the other sign. The share of signs that give a larger sum is
    the share of halves with a mean below 0. Equal sums count half (mid-p), so that the test rejects in
    2 * `tail` of cases, not less, if few images differ. An end that is rejected itself is moved inwards by
    the rounding.
    """
    values, counts = np.unique(means, return_counts=True)
    return _least(values, counts, tail), 0.0 - _least(-values[::-1], counts[::-1], tail)  # 0.0, not -0.0


def _least(values: np.ndarray, counts: np.ndarray, tail: float) -> float:
    """The lower end for ascending values with these counts."""
    first = int((counts.cumsum() >= tail * counts.sum()).argmax())
    rejected = counts[:first].sum() + counts[first] / 2 < tail * counts.sum()
    return float(values[first] + rejected * 10.0**-DIGITS)
