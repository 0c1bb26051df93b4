"""Metrics of evaluations and transfers beside the baselines', with intervals and paired differences."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cl.report.experiments import GROUPS
from cl.report.files import ResultFiles
from cl.runtime.metric_info import BACKBONE, Measurement
from cl.statistics import FEWEST, Estimate, Interval, PairedComparison, estimate, judge

HEADINGS = {"evaluate": "Evaluation", "transfer": "Detection transfer"}
Cell = Estimate | str  # a number, or why it is missing
Column = dict[str, Measurement]  # an encoder's results in one evaluation, by metric
Row = dict[str, str]
Answers = dict[str, tuple[bool, str]]  # by image: whether it was right, and the image's group
# By metric: the file, its column for the backbone (for others named like them), and what counts as right.
TABLES: dict[str, tuple[str, str, Callable[[Row, str], bool]]] = {
    "top1": ("predictions.csv", "predicted", lambda row, column: row[column] == row["truth"]),
    "hit1": ("images.csv", "place", lambda row, column: row[column] == "1"),
    "hit5": ("images.csv", "place", lambda row, column: row[column] != ""),
}


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


def paired(
    read: ResultFiles, own: tuple[str, Measurement], other: tuple[str, Measurement]
) -> PairedComparison | None:
    """The first encoder's measurement against the other's, each with the name of its result, image by image.

    Its interval is narrower than two separate intervals suggest: easy images are easy for both.
    None if a table is missing, is not what gave the number (one of several seeds), or has other images.
    """
    ours, theirs = (answers(read, *each) for each in (own, other))
    if not ours or ours.keys() != theirs.keys():
        return None
    scores = np.array([(theirs[image][0], ours[image][0]) for image in ours], float)  # (images, 2)
    groups = np.array([f"group {group}" if group else f"image {image}" for image, (_, group) in ours.items()])
    return judge({own[1].metric: 100 * scores}, groups)


def answers(read: ResultFiles, result: str, measured: Measurement) -> Answers:
    """Whether each image was right; empty if no table has the images behind this number."""
    metric = measured.metric.removeprefix("cached_")
    if metric not in TABLES or measured.n > 1:
        return {}
    file, backbone, is_right = TABLES[metric]
    rows = read.table(result, file)
    column = backbone if measured.representation == BACKBONE else measured.representation
    if not rows or column not in rows[0]:
        return {}
    found = {row["image"]: (is_right(row, column), row.get("group", "")) for row in rows}
    percent = 100 * sum(right for right, _ in found.values()) / len(found)
    return found if abs(percent - measured.mean) < 0.01 else {}


def chance(read: ResultFiles, result: str, measured: Measurement) -> float | None:
    """What guessing reaches, in percent: always the most frequent class, or any image; None if unknown."""
    if rows := read.table(result, "predictions.csv"):
        return 100 * max(Counter(row["truth"] for row in rows).values()) / len(rows)
    if measured.metric in ("hit1", "hit5") and (images := read.metrics("prepare").get("val_images")):
        return 100 * int(measured.metric[-1]) / images
    return None
