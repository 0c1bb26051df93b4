"""The numbers of a result: what each measures, its mean over seeds, and its meaning."""

from collections.abc import Iterable, Mapping
from statistics import fmean, stdev
from typing import Literal, NamedTuple

LEVEL = 0.95  # of all confidence intervals
BACKBONE = "backbone"  # the representation of metrics whose names do not contain another
IN_WORDS = {"embedding": "projector's embedding", "pixels": "raw pixels"}  # other representations
Runs = list[dict[str, dict[str, float]]]  # for each seed, by representation and metric


class Share(float):
    """A percentage of images; `images`: how many independent ones it counts, for its interval."""

    images: float

    def __new__(cls, percent: float, images: float) -> "Share":
        """As a float."""
        share = super().__new__(cls, percent)
        share.images = images
        return share


class MetricInfo(NamedTuple):
    """The description of a metric.

    title: its name in words.
    meaning: one line on what it measures, with the unit unless it is percent.
    better: the good direction; None if there is none, as for a setting.
    """

    title: str
    meaning: str
    better: Literal["higher", "lower"] | None = None


class Measurement(NamedTuple):
    """A number that a stage records for the report.

    stage: evaluate, transfer or analyze; entry: the name of the evaluation, transfer or analysis.
    representation: the output of the encoder that was measured.
    baseline: the baseline that the encoder belongs to; None for the pretrained encoder.
    sd: standard deviation over the `n` seeds; None for one seed and for a setting.
    title, meaning, better: as in `MetricInfo`.
    images: how many independent images a percentage counts; None for other numbers.
    """

    stage: str
    entry: str
    representation: str
    metric: str
    mean: float
    sd: float | None
    n: int
    title: str
    meaning: str
    better: Literal["higher", "lower"] | None
    images: float | None
    baseline: str | None = None

    @property
    def name(self) -> str:
        """Its name in DVC and in the papers' tables: `<entry>_[<representation>_]<metric>`."""
        middle = "" if self.representation == BACKBONE else f"{self.representation}_"
        return f"{self.entry}_{middle}{self.metric}"


def measurements(stage: str, entry: str, runs: Runs, infos: Mapping[str, MetricInfo]) -> list[Measurement]:
    """Means over runs with different seeds; `infos` describes each metric.

    A setting, for which no direction is better, is not averaged: it is dropped if the runs differ in it.
    """
    result = []
    for representation, metric in ((name, metric) for name, metrics in runs[0].items() for metric in metrics):
        values, info = [run[representation][metric] for run in runs], infos[metric]
        if info.better is None and len(set(values)) > 1:
            continue
        mean, sd = rounded(fmean(values)), None
        images = fmean(shares) if (shares := [x.images for x in values if isinstance(x, Share)]) else None
        if info.better and len(values) > 1:
            sd = rounded(stdev(values))
        if representation != BACKBONE:
            info = info._replace(title=f"{info.title}, {IN_WORDS.get(representation, representation)}")
        result.append(Measurement(stage, entry, representation, metric, mean, sd, len(runs), *info, images))
    return result


def rounded(value: float) -> float:
    """Rounded to four decimals; numbers below 0.1 to four significant digits."""
    return round(value, 4) if abs(value) >= 0.1 else float(f"{value:.4g}")


def flat(numbers: Iterable[Measurement]) -> dict[str, float]:
    """Means by their names in DVC: `[<baseline>_]<name>`.

    With several seeds, also standard deviations as `<name>_sd`, and the number of seeds as
    `[<baseline>_]<entry>_n`.
    """
    result: dict[str, float] = {}
    for number in numbers:
        prefix = f"{number.baseline}_" if number.baseline else ""
        result[f"{prefix}{number.name}"] = number.mean
        if number.sd is not None:
            result[f"{prefix}{number.name}_sd"] = number.sd
        if number.n > 1:
            seeds = f"{prefix}{number.entry}_n"
            result[seeds] = result.pop(seeds, float(number.n))  # moved behind all numbers of the entry
    return result
