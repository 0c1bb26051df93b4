"""A study: a question with its experiments and its claims, written down before any of them runs."""

import hashlib
from math import floor, inf, log10, sqrt
from statistics import fmean, stdev
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator
from scipy.special import nctdtr, stdtr, stdtrit

from cl.runtime.base_config import BaseConfig, Seeds, suggestion
from cl.statistics import Interval, interval_of_mean, mean_and_sd

UNDECIDED = "undecided"
PLANS = {
    None: "registered by the tool",
    "before results": "committed before its results",
    "with results": "committed with its results",
}
GIVEN = {"theorem": "a theorem", "identity": "an identity", "loss": "what the loss minimises"}
LEVEL, POWER, MOST_SEEDS = 0.05, 0.8, 999
Name = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
Quantity = Annotated[str, Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)?$")]  # `arm`, or `arm.metric`


Mean = Annotated[list[Quantity], Field(min_length=2)]


class Pair(BaseConfig):
    """The difference: the metric of `arm`, or the mean of several, minus that of `than`, or a number.

    `arm.metric` is another metric of the arm than the study's.
    """

    arm: Quantity | Mean
    than: Quantity | Mean | float

    @model_validator(mode="after")
    def _two_arms(self) -> Self:
        if both := set(_names(self.arm)) & set(_names(self.than)):
            raise ValueError(f"{min(both)} is compared with itself; name two arms")
        return self

    @property
    def quantities(self) -> list[str]:
        """What has to be measured."""
        return [*_names(self.arm), *_names(self.than)]

    def difference(self, values: dict[str, dict[int, float]], seed: int) -> float:
        """Of one seed; `values` holds the quantities by seed."""
        return _mean_of(self.arm, values, seed) - _mean_of(self.than, values, seed)

    def __str__(self) -> str:
        return f"{_text(self.arm)} - {_text(self.than)}"


def _names(side: str | list[str] | float) -> list[str]:
    """The quantities of a side of a difference."""
    return side if isinstance(side, list) else [side] if isinstance(side, str) else []


def _mean_of(side: str | list[str] | float, values: dict[str, dict[int, float]], seed: int) -> float:
    return side if isinstance(side, float) else fmean(values[name][seed] for name in _names(side))


def _text(side: str | list[str] | float) -> str:
    return f"mean({', '.join(side)})" if isinstance(side, list) else str(side)


class Comparison(Pair):
    """The claim that the difference is above 0.

    minus: a second difference, which is subtracted: the claim is that the first is larger.
    within: points; the claim is that the difference is between -within and within.
    not_worse_than: points; the claim is that the difference is above -not_worse_than.
    tested: false if nothing is claimed, and the difference is only shown.
    given: why the claim holds whatever was learnt, so that it only checks the code: the source proves it,
        it is an identity of the formulas, or it is what the loss of an arm minimises.
    """

    minus: Pair | None = None
    within: float | None = Field(None, gt=0)
    not_worse_than: float | None = Field(None, gt=0)
    tested: bool = True
    given: Literal["theorem", "identity", "loss"] | None = None

    @model_validator(mode="after")
    def _claims_one_thing(self) -> Self:
        claims = [self.within is not None, self.not_worse_than is not None, not self.tested]
        if sum(claims) > 1:
            raise ValueError("within, not_worse_than and tested: false exclude each other; keep one of them")
        return self

    def __str__(self) -> str:
        return super().__str__() + (f" - ({self.minus})" if self.minus else "")

    @property
    def bounds(self) -> tuple[float, float]:
        """The claim is that the difference is between these."""
        return -(self.within or self.not_worse_than or 0), self.within or inf

    @property
    def claim(self) -> str:
        """As the page prints it; empty if nothing is claimed."""
        if not self.tested:
            return ""
        low, high = self.bounds
        claim = f"above {low:g}" if high == inf else f"between {low:g} and {high:g}"
        return f"{claim} ({GIVEN[self.given]})" if self.given else claim

    @property
    def all_quantities(self) -> list[str]:
        """With those of `minus`."""
        return [name for pair in (self, self.minus) if pair for name in pair.quantities]

    def differences(self, values: dict[str, dict[int, float]]) -> dict[int, float]:
        """By seed, for the seeds that all of its quantities have; `values` holds them by seed."""
        seeds = set.intersection(*(set(values[name]) for name in self.all_quantities))
        return {
            seed: self.difference(values, seed) - (self.minus.difference(values, seed) if self.minus else 0)
            for seed in sorted(seeds)
        }

    def distance(self, difference: float) -> float:
        """From the difference to the nearest bound of the claim."""
        return min(abs(difference - bound) for bound in self.bounds)

    def verdict(self, interval: Interval | None) -> str:
        """Shown, refuted or undecided, or that nothing is claimed."""
        if not self.tested:
            return "not tested"
        low, high = self.bounds
        if interval is None:
            return UNDECIDED
        if low < interval.low and interval.high < high:
            return "shown"
        return "refuted" if interval.high < low or high < interval.low else UNDECIDED


class Study(BaseConfig):
    """docs/studies/<name>.yaml.

    source: where the claim is made. limits: how these runs differ from those of the source.
    follows: what the results mean for a user's choice, written once they are there.
    continued: the newer study of the same question.
    registration: of studies older than `benchmarks.plans`, whether Git has the plan before the results, or
        only together with them.
    regime: equal for studies whose encoders were trained alike.
    settings, arms: overrides of `dvc exp run -S`, for all experiments and for those of an arm.
    metric: a number of the results, such as knn_top1, in percent; comparisons may name others.
    """

    question: str
    follows: str | None = None
    continued: Name | None = None
    registration: Literal["before results", "with results"] | None = None
    regime: Name | None = None
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
        if len({str(each) for each in self.comparisons}) < len(self.comparisons):
            raise ValueError("comparisons: a difference is there twice; keep one")
        for name in (arm_and_metric(name)[0] for each in self.comparisons for name in each.all_quantities):
            if name not in self.arms:
                raise ValueError(f"comparisons: {name} is not an arm{suggestion(name, list(self.arms))}")
        return self

    @property
    def quantities(self) -> dict[str, tuple[str, str]]:
        """The arm and the metric of all that is measured."""
        named = (name for each in self.comparisons for name in each.all_quantities)
        pairs = {name: arm_and_metric(name) for name in (*self.arms, *named)}
        return {name: (arm, metric or self.metric) for name, (arm, metric) in pairs.items()}

    def of(self, arm: str) -> list[str]:
        """The quantities of an arm."""
        return [name for name, (its_arm, _) in self.quantities.items() if its_arm == arm]

    def overrides(self, arm: str, seed: int) -> list[str]:
        """The overrides of one experiment."""
        return [*self.settings, *self.arms[arm], f"seed={seed}"]

    def fingerprint(self, quantity: str) -> str:
        """Changes with the metric and the overrides, but not with the files that the overrides name."""
        arm, metric = self.quantities[quantity]
        return hashlib.sha256(repr([metric, *self.settings, *self.arms[arm]]).encode()).hexdigest()[:8]


def arm_and_metric(quantity: str) -> tuple[str, str]:
    """The parts of `arm.metric`; the second is empty for the study's metric."""
    arm, _, metric = quantity.partition(".")
    return arm, metric


class Row(NamedTuple):
    """A number of a finished experiment, the seconds that pretraining took, and the commit of the code.

    arm: or `arm.metric`.
    settings: its fingerprint.
    plan, parameters: see `benchmarks.plans`; empty for rows older than these columns.
    data: the hash of the images; empty likewise.
    """

    arm: str
    seed: int
    value: float
    seconds: int
    commit: str
    settings: str
    plan: str = ""
    parameters: str = ""
    data: str = ""


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

    @property
    def p(self) -> float:
        """The level at which Student's interval just decides the claim; 1 until all seeds have finished."""
        if not self.finished or self.interval is None:
            return 1.0
        values = list(self.differences.values())
        error = stdev(values) / sqrt(len(values))
        distance = self.comparison.distance(fmean(values))
        if not error:
            return 0.0 if distance else 1.0  # equal arms decide nothing
        return float(2 * stdtr(len(values) - 1, -distance / error))

    def seeds_needed(self, level: float = LEVEL) -> int | None:
        """Seeds that decide the claim at `level` with power 0.8, if difference and deviation are those seen.

        None if it is unknown, or more than `MOST_SEEDS`.
        """
        values = list(self.differences.values())
        if len(values) < 2 or not (deviation := stdev(values)):
            return None
        mean, (low, high) = fmean(values), self.comparison.bounds
        inside = low < mean < high < inf  # then the interval has to clear both bounds
        distances = [mean - low, high - mean] if inside else [self.comparison.distance(mean)]
        for seeds in range(2, MOST_SEEDS + 1):
            missed = sum(1 - power(each / deviation, seeds, level) for each in distances)
            if 1 - missed >= POWER:
                return seeds
        return None


def power(effect: float, seeds: int, level: float = LEVEL) -> float:
    """The probability that Student's interval is above 0, for `effect` standard deviations above 0.

    level: the probability that the interval misses a true 0.
    """
    return float(1 - nctdtr(seeds - 1, effect * sqrt(seeds), stdtrit(seeds - 1, 1 - level / 2)))


def corrected(decisions: list[Decision], others: int = 0) -> list[str]:
    """The verdicts of several claims: the probability that any is wrong is at most `LEVEL` (Holm 1979).

    Args:
        others: further claims, which count as undecided.
    """
    verdicts = [UNDECIDED] * len(decisions)
    for tried, number in enumerate(sorted(range(len(decisions)), key=lambda number: decisions[number].p)):
        if decisions[number].p * (len(decisions) + others - tried) > LEVEL:
            break
        verdicts[number] = decisions[number].verdict
    return verdicts


def decide(study: Study, rows: list[Row]) -> list[Decision]:
    """Every comparison."""
    values = {name: {row.seed: row.value for row in rows if row.arm == name} for name in study.quantities}
    decisions = []
    for comparison in study.comparisons:
        differences = comparison.differences(values)
        interval = interval_of_mean(list(differences.values()))
        decisions.append(Decision(comparison, differences, interval, set(study.seeds) <= set(differences)))
    return decisions


def page(study: Study, rows: list[Row]) -> str:
    """The study, its numbers and its verdicts, as Markdown."""
    finished, wanted = sum(row.arm in study.arms for row in rows), len(study.arms) * len(study.seeds)
    lines = [
        f"# {study.question}",
        "",
        *([f"**What follows:** {study.follows}", ""] if study.follows else []),
        *([f"Continued by {study.continued}.", ""] if study.continued else []),
        f"{finished} of {wanted} runs have finished. The plan was {PLANS[study.registration]}.",
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
        "at 95 %, not corrected for the number of comparisons, as in docs/results/claims.md. Once all "
        "seeds have finished, a claim is shown if the whole interval agrees with it, refuted if none does, "
        "otherwise undecided; the seeds in brackets would then decide it with probability 0.8, if "
        "difference and deviation are those seen.",
        "",
        "| comparison | claim | difference | interval | seeds | verdict |",
        "|---|---|---|---|---|---|",
        *(_decision(decision) for decision in decide(study, rows)),
        "",
    ]
    return "\n".join(lines)


def _arm(name: str, overrides: list[str], values: list[float]) -> str:
    changed = f"`{' '.join(overrides)}`" if overrides else ""
    return f"| {name} | {changed} | {_mean(values)} | {len(values)} |"


def _mean(values: list[float]) -> str:
    """The mean ± the deviation, with a decimal, or as many as the deviation's first digit needs."""
    if not values:
        return ""
    mean, deviation = mean_and_sd(values)
    decimals = max(1, -floor(log10(deviation))) if deviation else 1
    return f"{mean:.{decimals}f}" + (f" ± {deviation:.{decimals}f}" if deviation is not None else "")


def _decision(decision: Decision) -> str:
    return f"| {' | '.join([str(decision.comparison), *cells(decision, decision.verdict)])} |"


def cells(decision: Decision, verdict: str, level: float = LEVEL) -> list[str]:
    """Claim, difference, interval, seeds and verdict of a table's row, with the seeds that `level` needs.

    The verdict on a claim about a margin also tells whether the interval excludes 0.
    """
    differences, interval = list(decision.differences.values()), decision.interval
    mean = f"{fmean(differences):+.3g}" if differences else ""
    between = f"{interval.low:+.3g} to {interval.high:+.3g}" if interval else ""
    needed = ""
    if verdict == UNDECIDED and decision.finished:
        needed = f" ({decision.seeds_needed(level) or f'over {MOST_SEEDS}'})"
    if decision.finished and interval and decision.comparison.bounds[0]:
        verdict += ", below 0" if interval.high < 0 else ", above 0" if interval.low > 0 else ""
    return [decision.comparison.claim, mean, between, f"{len(differences)}{needed}", verdict]
