"""Metrics of evaluations and transfers beside the baselines', with intervals and explanations."""

from typing import Any, NamedTuple

from cl.report.experiments import GROUPS
from cl.report.files import ResultFiles
from cl.report.pairs import chance, paired
from cl.runtime.metric_info import Measurement
from cl.statistics import FEWEST, Estimate, Interval, estimate

HEADINGS = {"evaluate": "Evaluation", "transfer": "Detection transfer"}
Cell = Estimate | str  # a number, or why it is missing
Column = dict[str, Measurement]  # an encoder's results in one evaluation, by metric


class Gain(NamedTuple):
    """A difference in points, better (`up`), worse (`down`) or unclear; interval: paired by image, if any."""

    points: float
    verdict: str
    interval: Interval | None = None


class _Encoder(NamedTuple):
    """The result of an encoder in one evaluation, and whether the parameters request it."""

    result: str
    column: Column
    requested: bool = True


def tables(params: dict[str, Any], read: ResultFiles) -> dict[str, list[dict[str, Any]]]:
    """By heading: a row for each evaluation and each transfer that the parameters name."""
    return {
        heading: [_row(stage, name, params, read) for name in params[GROUPS[stage]]]
        for stage, heading in HEADINGS.items()
        if params[GROUPS[stage]]
    }


def _row(stage: str, name: str, params: dict[str, Any], read: ResultFiles) -> dict[str, Any]:
    """One evaluation: its meaning, its settings, and a line for each metric."""
    group, result = GROUPS[stage], f"{stage}/{name}"
    own = _Encoder(result, _column(name, read.measurements(result)))
    provenance = read.provenance(result)
    baselines, others, about = [], [], provenance.get("about", {}).get(name, "")
    for baseline, config in params["baselines"].items():
        if chosen := params[group] if config[group] == "all" else config[group]:
            column = _column(name, read.measurements(f"baseline/{baseline}"))
            about = about or read.provenance(f"baseline/{baseline}").get("about", {}).get(name, "")
            baselines.append(baseline)
            others.append(_Encoder(f"baseline/{baseline}/{name}", column, name in chosen))
    known: Column = {}
    for _, column, _ in (own, *others):
        known |= {key: each for key, each in column.items() if key not in known}
    remarks = [provenance.get("engine"), provenance.get("subset"), _seeds(own.column)]
    used = params[group][name] | provenance.get("reduced", {})  # for few images
    settings = _settings(used, own.column) if stage == "evaluate" else []
    return {
        "name": name,
        "about": about,
        "settings": ", ".join([*settings, *filter(None, remarks)]),
        "baselines": baselines,
        "chance": chance(read, result, next(iter(own.column.values()))) if own.column else None,
        "lines": [_line(measured, own, others, read) for measured in known.values() if measured.better],
    }


def _line(measured: Measurement, own: _Encoder, others: list[_Encoder], read: ResultFiles) -> dict[str, Any]:
    """A metric of all encoders, and what this one gains over each other."""
    return {
        "measured": measured,
        "pretrained": _cell(measured, own),
        "others": [(_cell(measured, other), _gain(measured.name, own, other, read)) for other in others],
    }


def _column(name: str, measurements: list[Measurement]) -> Column:
    return {each.name: each for each in measurements if each.entry == name}


def _seeds(column: Column) -> str:
    n = next((measured.n for measured in column.values()), 0)
    if n > 1:
        return f"mean ± standard deviation over {n} seeds"
    return "one seed" if n else ""


def _settings(config: dict[str, Any], pretrained: Column) -> list[str]:
    """The scalar parameters of an evaluation, and the settings that it chose (metrics without `better`)."""
    scalars = {
        key: value
        for key, value in config.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool) and key != "kind"
    }
    chosen = {each.title: each.mean for each in pretrained.values() if each.better is None}
    return [
        f"{key.replace('_', ' ')} {value if isinstance(value, str) else format(value, 'g')}"
        for key, value in {**scalars, **chosen}.items()
    ]


def _cell(measured: Measurement, encoder: _Encoder) -> Cell:
    if measured.name in encoder.column:
        return estimate([encoder.column[measured.name]])
    return "" if encoder.column or not encoder.requested else "not run"


def _gain(name: str, own: _Encoder, other: _Encoder, read: ResultFiles) -> Gain | None:
    """This encoder's gain; over raw pixels, that of its features."""
    if not (theirs := other.column.get(name)):
        return None
    ours = own.column.get(name) or own.column.get(f"{theirs.entry}_{theirs.metric}")
    if not ours:
        return None
    if pair := paired(read, (own.result, ours), (other.result, theirs)):
        row, verdict = pair.overall, {"better": "up", "worse": "down"}.get(pair.verdict, "")
        return Gain(row.difference, verdict, Interval(row.low, row.high) if pair.groups >= FEWEST else None)
    points, (a, b) = ours.mean - theirs.mean, (estimate([each]).interval for each in (ours, theirs))
    if not (a and b) or a.overlaps(b):
        return Gain(points, "")
    return Gain(points, "up" if (points > 0) == (theirs.better != "lower") else "down")
