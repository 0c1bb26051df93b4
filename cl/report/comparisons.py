"""Losses and methods compared: means and paired differences of experiments that differ in nothing else."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

from cl.report.experiments import Experiment, grouped, headline_metrics, varying_keys
from cl.report.intervals import Estimate, estimate, interval_of_mean, mean_and_sd
from cl.report.sweeps import Line, labels, measured_rows

METHOD = (
    "method",
    "temperature",
    "bn_group",
    "loss",
    "views",
    "patches",
    "optim.predictor_lr",
)  # it sets these


class Comparison(NamedTuple):
    """Two groups of experiments in one metric, over the seeds of both; the larger mean comes first.

    differs: the parameters that differ, except the method's or loss's own.
    difference: the mean difference of equal seeds, with Student's interval.
    """

    metric: str
    names: list[str]
    differs: list[str]
    means: list[Estimate]
    difference: Estimate


def comparisons(experiments: list[Experiment]) -> Iterator[Comparison]:
    """Every pair of groups that differ only in the loss, or only in what a method sets, and share two seeds.

    A pair that differs in method and loss is left out if one method was also run with the other's loss.
    """
    for metric in headline_metrics(experiments):
        groups = grouped(measured_rows(metric, experiments), lambda pair: pair[0])
        crossed = [_objective(group[0][0]) for group in groups]
        for pair in combinations(groups, 2):
            rows = [group[0][0] for group in pair]
            (method, loss), (other_method, other_loss) = map(_objective, rows)
            both = method != other_method and loss != other_loss
            if both and ((method, other_loss) in crossed or (other_method, loss) in crossed):
                continue
            if _is_comparable(keys := varying_keys(rows)) and (found := _paired(metric, pair, keys)):
                yield found


def _objective(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of the method, and of the loss."""
    method, loss = (
        {key: row[key] for key in row if _is_below(key, (group,))} for group in ("method", "loss")
    )
    return method, loss


def _is_below(key: str, groups: tuple[str, ...]) -> bool:
    return f"{key}.".startswith(tuple(f"{group}." for group in groups))


def _is_comparable(keys: list[str]) -> bool:
    only_loss = all(_is_below(key, ("loss",)) for key in keys)
    changes_method = any(_is_below(key, ("method",)) for key in keys)
    return only_loss or (changes_method and all(_is_below(key, METHOD) for key in keys))


def _paired(metric: str, groups: tuple[Line, Line], keys: list[str]) -> Comparison | None:
    found = [
        {each.seed: measured for _, each in reversed(group) if (measured := each.find(metric))}
        for group in groups
    ]
    seeds = [seed for seed in found[0] if seed in found[1]]
    if len(seeds) < 2:
        return None
    means = [estimate([by_seed[seed] for seed in seeds]) for by_seed in found]
    names = labels([group[0][0] for group in groups])
    if means[0].mean < means[1].mean:
        found, means, names = found[::-1], means[::-1], names[::-1]
    differences = [found[0][seed].mean - found[1][seed].mean for seed in seeds]
    difference = Estimate(*mean_and_sd(differences), len(seeds), interval_of_mean(differences))
    return Comparison(
        metric, names, list(dict.fromkeys(key.split(".")[0] for key in keys)), means, difference
    )
