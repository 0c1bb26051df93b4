"""95 % confidence intervals of percentages over images and seeds, of means, and of differences."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from scipy.special import ndtri, stdtrit  # scipy.stats takes long to import

from cl.runtime.metric_info import LEVEL, Measurement


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
    """A mean over `n` seeds with its uncertainty.

    sd: standard deviation over the seeds; None for a single seed.
    interval: the 95 % interval of the mean, if known.
    names: the averaged experiments.
    images: how many independent images it counts; 0 if all are of one group, None if it counts none.
    """

    mean: float
    sd: float | None
    n: int
    interval: Interval | None = None
    names: tuple[str, ...] = ()
    images: float | None = None

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
    percent: float, images: float | None, sd: float | None = None, seeds: int = 1
) -> Interval | None:
    """The interval of a mean over seeds; None for a single group of images, or if images and seeds give none.

    Wilson's interval of the binomial and Student's interval of the mean over seeds are independent errors, so
    their distances from the mean add in quadrature.

    Args:
        images: number of independent images behind the percentage, possibly fractional if images of a group
            agree; None for other numbers, such as an average precision.
        sd: standard deviation over the seeds.
    """
    if images == 0:
        return None
    low = high = percent
    if images:
        z = float(ndtri((1 + LEVEL) / 2))
        shrinkage = 1 + z**2 / images
        centre = (percent + 50 * z**2 / images) / shrinkage
        half = z * math.sqrt(percent * (100 - percent) / images + (50 * z / images) ** 2) / shrinkage
        low, high = min(percent, centre - half), max(percent, centre + half)
    over_seeds = 0.0
    if sd is not None and seeds > 1:
        over_seeds = _over_seeds(sd, seeds)
    elif not images:
        return None
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


def mean_and_deviation(values: Sequence[float]) -> str:
    """The mean, with ± the standard deviation if there are several values."""
    return Estimate(*mean_and_sd(values), len(values)).number
