"""A study: a question with its experiments and its claims, written down before any of them runs."""

import hashlib
from math import inf
from statistics import fmean
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from cl.report.charts import Chart
from cl.report.intervals import Interval, interval_of_mean, mean_and_deviation
from cl.runtime.base_config import BaseConfig, Seeds, suggestion

UNDECIDED = "undecided with these runs"
Name = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]


class Pair(BaseConfig):
    """The difference of the metric: that of `arm`, or the mean of several, minus that of `than`."""

    arm: Name | Annotated[list[Name], Field(min_length=2)]
    than: Name

    @model_validator(mode="after")
    def _two_arms(self) -> Self:
        if self.than in self.names:
            raise ValueError(f"{self.than} is compared with itself; name two arms")
        return self

    @property
    def names(self) -> list[str]:
        """The arms whose mean is compared."""
        return [self.arm] if isinstance(self.arm, str) else self.arm

    def difference(self, values: dict[str, dict[int, float]], seed: int) -> float:
        """Of one seed; `values` holds the metric by arm and seed."""
        return fmean(values[name][seed] for name in self.names) - values[self.than][seed]

    def __str__(self) -> str:
        mean = self.arm if isinstance(self.arm, str) else f"mean({', '.join(self.arm)})"
        return f"{mean} - {self.than}"


class Comparison(Pair):
    """The claim that the difference is above 0.

    minus: a second difference, which is subtracted: the claim is that the first is larger.
    within: points; the claim is that the difference is between -within and within.
    tested: false if nothing is claimed, and the difference is only shown.
    """

    minus: Pair | None = None
    within: float | None = Field(None, gt=0)
    tested: bool = True

    @model_validator(mode="after")
    def _claims_what_it_tests(self) -> Self:
        if self.within is not None and not self.tested:
            raise ValueError("within is a claim, and tested: false makes none; remove one of them")
        return self

    def __str__(self) -> str:
        return super().__str__() + (f" - ({self.minus})" if self.minus else "")

    @property
    def claim(self) -> str:
        """As the page prints it; empty if nothing is claimed."""
        if not self.tested:
            return ""
        return "above 0" if self.within is None else f"between -{self.within:g} and {self.within:g}"

    @property
    def arms(self) -> list[str]:
        """Every arm whose runs it needs."""
        return [name for pair in (self, self.minus) if pair for name in (*pair.names, pair.than)]

    def differences(self, values: dict[str, dict[int, float]]) -> dict[int, float]:
        """By seed, for the seeds that all of its arms have; `values` holds the metric by arm and seed."""
        seeds = set.intersection(*(set(values[name]) for name in self.arms))
        return {
            seed: self.difference(values, seed) - (self.minus.difference(values, seed) if self.minus else 0)
            for seed in sorted(seeds)
        }

    def verdict(self, interval: Interval | None) -> str:
        """Shown, refuted or undecided, or that nothing is claimed."""
        if not self.tested:
            return "not tested"
        low, high = (0, inf) if self.within is None else (-self.within, self.within)
        if interval is None:
            return UNDECIDED
        if low < interval.low and interval.high < high:
            return "shown"
        return "refuted" if interval.high < low or high < interval.low else UNDECIDED


class Study(BaseConfig):
    """docs/studies/<name>.yaml.

    source: where the claim is made. limits: how these runs differ from those of the source.
    settings, arms: overrides of `dvc exp run -S`, for all experiments and for those of an arm.
    metric: a number of the results, such as knn_top1, in percent.
    """

    question: str
    source: str
    limits: str
    settings: list[str]
    arms: dict[Name, list[str]]
    seeds: Seeds
    metric: str
    comparisons: list[Comparison] = Field(min_length=1)

    @model_validator(mode="after")
    def _arms_differ_and_exist(self) -> Self:
        if any(word.startswith("seed=") for words in (self.settings, *self.arms.values()) for word in words):
            raise ValueError("settings and arms must not set the seed; seeds lists all of them")
        by_overrides: dict[tuple[str, ...], str] = {}
        for name, overrides in self.arms.items():
            if (other := by_overrides.setdefault(tuple(sorted(overrides)), name)) != name:
                raise ValueError(f"arms: {name} and {other} have the same overrides")
        for name in (name for comparison in self.comparisons for name in comparison.arms):
            if name not in self.arms:
                raise ValueError(f"comparisons: {name} is not an arm{suggestion(name, list(self.arms))}")
        return self

    def overrides(self, arm: str, seed: int) -> list[str]:
        """The overrides of one experiment."""
        return [*self.settings, *self.arms[arm], f"seed={seed}"]

    def fingerprint(self, arm: str) -> str:
        """Changes with the metric and the overrides, but not with the files that the overrides name."""
        return hashlib.sha256(repr([self.metric, *self.settings, *self.arms[arm]]).encode()).hexdigest()[:8]


class Row(NamedTuple):
    """A finished experiment: its metric, the seconds that pretraining took, and the commit of the code.

    settings: the arm's fingerprint.
    """

    arm: str
    seed: int
    value: float
    seconds: int
    commit: str
    settings: str


class Decision(NamedTuple):
    """A comparison's paired differences by seed, their mean with its 95 % interval, and what they decide.

    finished: whether all seeds of the study are there; nothing is decided before.
    """

    comparison: Comparison
    differences: dict[int, float]
    interval: Interval | None
    finished: bool

    @property
    def verdict(self) -> str:
        return self.comparison.verdict(self.interval if self.finished else None)


def decide(study: Study, rows: list[Row]) -> list[Decision]:
    """Every comparison."""
    values = {name: {row.seed: row.value for row in rows if row.arm == name} for name in study.arms}
    decisions = []
    for comparison in study.comparisons:
        differences = comparison.differences(values)
        interval = interval_of_mean(list(differences.values()))
        decisions.append(Decision(comparison, differences, interval, set(study.seeds) <= set(differences)))
    return decisions


def chart(name: str, study: Study, rows: list[Row]) -> Chart:
    """The differences by seed."""
    drawn = Chart(name, study.question, "seed", "difference in points", kind="points")
    for decision in decide(study, rows):
        for seed, difference in decision.differences.items():
            drawn.add(str(decision.comparison), seed, difference)
    return drawn


def page(name: str, study: Study, rows: list[Row]) -> str:
    """The study, its numbers and its verdicts, as Markdown."""
    wanted = len(study.arms) * len(study.seeds)
    lines = [
        f"# {study.question}",
        "",
        f"Written by `python -m benchmarks.study {name}` from `{name}.csv`: "
        f"{len(rows)} of {wanted} runs have finished.",
        "",
        f"* Source: {study.source}",
        f"* Limits: {study.limits}",
        f"* All runs: `{' '.join(study.settings)}`, seeds {', '.join(map(str, study.seeds))}",
        *([f"* Commits of the code: {', '.join(dict.fromkeys(row.commit for row in rows))}"] if rows else []),
        "",
        f"| arm | overrides | `{study.metric}` | runs |",
        "|---|---|---|---|",
        *(
            _arm(name, arm, [row.value for row in rows if row.arm == name])
            for name, arm in study.arms.items()
        ),
        "",
        "± is the standard deviation over seeds. Differences are paired by seed; the interval is Student's, "
        "at 95 %, not corrected for the number of comparisons. Once all seeds have finished, a claim is "
        "shown if the whole interval agrees with it, refuted if no part of it does, and otherwise undecided.",
        "",
        "| comparison | claim | difference | interval | seeds | verdict |",
        "|---|---|---|---|---|---|",
        *(_decision(decision) for decision in decide(study, rows)),
        "",
    ]
    if any(decision.differences for decision in decide(study, rows)):
        lines += [f"![Differences by seed]({name}.svg)", ""]
    return "\n".join(lines)


def _arm(name: str, overrides: list[str], values: list[float]) -> str:
    value = mean_and_deviation(values) if values else ""
    return f"| {name} | `{' '.join(overrides)}` | {value} | {len(values)} |"


def _decision(decision: Decision) -> str:
    differences, interval = list(decision.differences.values()), decision.interval
    mean = f"{fmean(differences):+.2f}" if differences else ""
    between = f"{interval.low:+.2f} to {interval.high:+.2f}" if interval else ""
    cells = [
        decision.comparison,
        decision.comparison.claim,
        mean,
        between,
        len(differences),
        decision.verdict,
    ]
    return f"| {' | '.join(map(str, cells))} |"
