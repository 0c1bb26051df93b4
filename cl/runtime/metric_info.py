"""The numbers of a result: what each is a number of, its mean over seeds, and what it means."""

from collections.abc import Iterable, Mapping
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

BACKBONE = "backbone"  # the representation that metrics are of unless their names say otherwise
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
    """A metric in words.

    title: its name in words.
    meaning: one line that says what it measures, and its unit unless that is percent.
    better: which direction is good; None if neither is, as for a setting.
    """

    title: str
    meaning: str
    better: Literal["higher", "lower"] | None = None


class Measurement(NamedTuple):
    """A number as its stage records it, for the report.

    stage: evaluate, transfer or analyze; entry: the name of the evaluation, transfer or analysis.
    representation: what of the encoder was measured; baseline: whose encoder, None for the pretrained one.
    sd: over the `n` seeds; None for one seed and for a setting.
    title, meaning, better: as in `MetricInfo`.
    images: how many independent images a percentage counts; None for any other number.
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
        """What DVC and the papers' tables call it: `<entry>_[<representation>_]<metric>`."""
        middle = "" if self.representation == BACKBONE else f"{self.representation}_"
        return f"{self.entry}_{middle}{self.metric}"


def measurements(stage: str, entry: str, runs: Runs, infos: Mapping[str, MetricInfo]) -> list[Measurement]:
    """Means over runs with different seeds.

    A setting, where neither direction is better, is not averaged: it is dropped if the runs differ in it.

    Args:
        infos: what each metric means.
    """
    found = []
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
        found.append(Measurement(stage, entry, representation, metric, mean, sd, len(runs), *info, images))
    return found


def rounded(value: float) -> float:
    """To four decimals; numbers below 0.1 to four significant digits."""
    return round(value, 4) if abs(value) >= 0.1 else float(f"{value:.4g}")


def flat(numbers: Iterable[Measurement]) -> dict[str, float]:
    """Means by the names that DVC shows: `[<baseline>_]<name>`.

    Of several seeds, also deviations as `<name>_sd`, and the number of seeds as `[<baseline>_]<entry>_n`.
    """
    found: dict[str, float] = {}
    for number in numbers:
        prefix = f"{number.baseline}_" if number.baseline else ""
        found[f"{prefix}{number.name}"] = number.mean
        if number.sd is not None:
            found[f"{prefix}{number.name}_sd"] = number.sd
        if number.n > 1:
            seeds = f"{prefix}{number.entry}_n"
            found[seeds] = found.pop(seeds, float(number.n))  # after all numbers of the entry
    return found


def recorded(provenance: Mapping[str, Any], result: str) -> list[Measurement]:
    """The measurements in the provenance of a result such as `evaluate/knn`.

    Raises:
        ValueError: version 0.2, which recorded none, made the result.
    """
    if "measurements" not in provenance:
        raise ValueError(
            f"results/{result}.provenance.json lists no measurements, as in version 0.2 of cl; "
            "run the experiment again with `dvc repro`"
        )
    return [Measurement(**values) for values in provenance["measurements"]]
