"""The claims that share an error of 5 %, fixed beforehand, and the deviation that studies share."""

from math import sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import NamedTuple

from scipy import stats

from benchmarks.studies import LEVEL, Decision
from cl import config
from cl.statistics import Interval
from pipeline.support.provenance import git

PRIMARY = Path("benchmarks/primary.yaml")
MOST = 10
REPLACED = "replaced"  # the claims that others took the place of, after their results


def replaced(text: str) -> list[str]:
    """The studies of claims that were primary once; they count in the correction."""
    return config.parse(text, str(PRIMARY)).get(REPLACED, [])


def primary(text: str) -> list[tuple[str, str]]:
    """The study of each primary claim, and the claim as the pages print it.

    Raises:
        ValueError: there are too many, or one is there twice.
    """
    found = config.parse(text, str(PRIMARY))
    claims = [(name, each) for name, group in found.items() if name != REPLACED for each in group]
    if len(claims) > MOST or len(set(claims)) < len(claims):
        raise ValueError(f"{PRIMARY} must have at most {MOST} different claims, found {len(claims)}")
    return claims


def stated_before(claim: tuple[str, str], commits: set[str]) -> bool:
    """Whether every commit that ran the study had the claim in `PRIMARY`."""
    texts = [git("show", f"{commit}:{PRIMARY}") for commit in commits]
    return all(text and claim in primary(text) for text in texts)


class Pooled(NamedTuple):
    """The deviation of paired differences, with its degrees of freedom and the p of Bartlett's test."""

    deviation: float
    degrees: int
    p: float

    def interval(self, differences: list[float]) -> Interval:
        """The 95 % interval of a mean, if the deviation is this one."""
        half = stats.t.isf(LEVEL / 2, self.degrees) * self.deviation / sqrt(len(differences))
        return Interval(fmean(differences) - half, fmean(differences) + half)


def poolable(decision: Decision) -> bool:
    """Whether it is the plain difference of two arms in the metric of their study, over all its seeds."""
    arms = decision.comparison.all_quantities
    return decision.finished and len(arms) == 2 and not any("." in arm for arm in arms)


def pooled(studies: list[list[Decision]]) -> Pooled | None:
    """The pooled variance of the plain differences of some studies; no arm counts twice.

    None if there are fewer than two differences, or if their variances differ at the level of 5 %.
    """
    samples = []
    for decisions in studies:
        used: set[str] = set()
        for each in filter(poolable, decisions):
            if len(each.differences) > 1 and used.isdisjoint(arms := each.comparison.all_quantities):
                used.update(arms)
                samples.append(list(each.differences.values()))
    if len(samples) < 2:
        return None
    degrees = sum(len(sample) - 1 for sample in samples)
    deviation = sqrt(sum((len(sample) - 1) * variance(sample) for sample in samples) / degrees)
    p = float(stats.bartlett(*samples).pvalue)
    return Pooled(deviation, degrees, p) if p >= LEVEL else None
