"""A study: a question with its experiments and what would refute it, written down before any of them runs."""

from statistics import fmean, stdev
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from cl.charts import Chart
from cl.report.intervals import Interval, interval_of_mean
from cl.runtime.base_config import BaseConfig, Seeds, suggestion

Name = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]


class Comparison(BaseConfig):
    """The claim that the metric of `arm` is larger than that of `than`."""

    arm: Name
    than: Name

    @property
    def arms(self) -> tuple[str, str]:
        """Both."""
        return self.arm, self.than


class Study(BaseConfig):
    """docs/studies/<name>.yaml.

    source: where the claim is made.
    settings, arms: overrides of `dvc exp run -S`, for all experiments and for those of an arm.
    metric: a number of the results, such as knn_top1, in percent.
    refuted_if: in words, for the reader; a comparison is refuted if its interval lies below 0.
    """

    question: str
    source: str
    settings: list[str]
    arms: dict[Name, list[str]]
    seeds: Seeds
    metric: str
    comparisons: list[Comparison] = Field(min_length=1)
    refuted_if: str

    @model_validator(mode="after")
    def _compares_arms(self) -> Self:
        for name in (name for comparison in self.comparisons for name in comparison.arms):
            if name not in self.arms:
                raise ValueError(f"comparisons: {name} is not an arm{suggestion(name, list(self.arms))}")
        return self

    def overrides(self, arm: str, seed: int) -> list[str]:
        """The overrides of one experiment."""
        return [*self.settings, *self.arms[arm], f"seed={seed}"]


class Row(NamedTuple):
    """A finished experiment: its metric, the seconds that pretraining took, and the commit that holds it."""

    arm: str
    seed: int
    value: float
    seconds: int
    revision: str


class Decision(NamedTuple):
    """A comparison's paired differences by seed, their mean with its 95 % interval, and what they decide."""

    comparison: Comparison
    differences: dict[int, float]
    interval: Interval | None

    @property
    def verdict(self) -> str:
        """Shown, refuted or undecided."""
        if self.interval is None or self.interval.low <= 0 <= self.interval.high:
            return "undecided with these runs"
        return "shown" if self.interval.low > 0 else "refuted"


def decide(study: Study, rows: list[Row]) -> list[Decision]:
    """Every comparison, from the seeds that both of its arms have."""
    decisions = []
    for comparison in study.comparisons:
        arm, than = ({row.seed: row.value for row in rows if row.arm == name} for name in comparison.arms)
        differences = {seed: arm[seed] - than[seed] for seed in sorted(arm.keys() & than.keys())}
        decisions.append(Decision(comparison, differences, interval_of_mean(list(differences.values()))))
    return decisions


def chart(name: str, study: Study, rows: list[Row]) -> Chart:
    """The differences by seed."""
    drawn = Chart(name, study.question, "seed", f"difference of {study.metric}", kind="points")
    for decision in decide(study, rows):
        for seed, difference in decision.differences.items():
            drawn.add(" - ".join(decision.comparison.arms), seed, difference)
    return drawn


def page(name: str, study: Study, rows: list[Row]) -> str:
    """The study, its numbers and its verdicts, as Markdown."""
    wanted = len(study.arms) * len(study.seeds)
    lines = [
        f"# {study.question}",
        "",
        f"Written by `python -m pipeline.study {name}` from `{name}.csv`: {len(rows)} of {wanted} runs have "
        "finished.",
        "",
        f"* Source: {study.source}",
        f"* Refuted if: {study.refuted_if}",
        f"* All runs: `{' '.join(study.settings)}`, seeds {', '.join(map(str, study.seeds))}",
        "",
        f"| arm | overrides | `{study.metric}` | runs |",
        "|---|---|---|---|",
        *(
            _arm(name, arm, [row.value for row in rows if row.arm == name])
            for name, arm in study.arms.items()
        ),
        "",
        "Differences are paired by seed; the interval is Student's, at 95 %.",
        "",
        "| comparison | difference | interval | seeds | verdict |",
        "|---|---|---|---|---|",
        *(_decision(decision) for decision in decide(study, rows)),
        "",
    ]
    if any(decision.differences for decision in decide(study, rows)):
        lines += [f"![Differences by seed]({name}.svg)", ""]
    return "\n".join(lines)


def _arm(name: str, overrides: list[str], values: list[float]) -> str:
    mean = f"{fmean(values):.1f}" if values else ""
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"| {name} | `{' '.join(overrides)}` | {mean}{spread} | {len(values)} |"


def _decision(decision: Decision) -> str:
    differences, interval = list(decision.differences.values()), decision.interval
    mean = f"{fmean(differences):+.1f}" if differences else ""
    between = f"{interval.low:+.1f} to {interval.high:+.1f}" if interval else ""
    arms = " - ".join(decision.comparison.arms)
    return f"| {arms} | {mean} | {between} | {len(differences)} | {decision.verdict} |"
