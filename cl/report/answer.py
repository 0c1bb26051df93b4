"""The first sentences of a report: is the encoder good, and has it finished learning?"""

from collections.abc import Iterable, Iterator
from typing import Any

from cl.report.rows import Gain
from cl.statistics import Estimate

PIXELS, UNTRAINED, PUBLISHED = "raw pixels", "untrained encoder", "published encoder"
TEACHER = "teacher encoder"
CLOSE = 3  # points below the teacher that a student may be
COSTS = (
    ("parameters", 1e6, "million parameters"),
    ("macs", 1e6, "million multiply-accumulates"),
    ("milliseconds", 1, "ms per image"),
)
IN_WORDS = {"up": "better than", "down": "worse than", "": "not clearly different from"}


def answer(
    rows: list[dict[str, Any]], titles: dict[str, str], pretraining: dict[str, Any], remarks: Iterable[str]
) -> list[str]:
    """Some sentences on evaluations (`cl.report.rows`) and provenance, then the remarks.

    A collapse comes first, then whether an adapted encoder is better than its start, or a student close to
    its teacher. `titles`: evaluations and baselines in words, by name.
    """
    row = headline(rows)
    sentences = _compared(row, titles) if row else ["This encoder has not been evaluated yet."]
    adaptation = pretraining.get("adaptation")
    for name, other, found in rivals(row, titles) if row and not adaptation else ():
        if name.startswith(PUBLISHED) and found.verdict != "up":
            weights, own = name.removeprefix(PUBLISHED).strip(" ()"), other.mean + found.points
            use = f"use it, or train on from it with recipe=own/adapt init={weights}"
            sentences.insert(0, f"This encoder {own:.1f} %, {weights} as published {other.number} %: {use}.")
    if adaptation:
        sentences.insert(0, _sentence(adaptation["sentence"]))
    if (cost := pretraining.get("distillation")) and row:
        sentences[:0] = _beside_teacher(row, titles, cost)
    if finding := pretraining.get("verdict"):
        place = 0 if pretraining.get("state") == "collapsed" else len(sentences)
        sentences.insert(place, _sentence(finding))
    return [*sentences, *map(_sentence, remarks)]


def _beside_teacher(
    row: dict[str, Any], titles: dict[str, str], cost: dict[str, dict[str, Any]]
) -> Iterator[str]:
    """Whether the student is close to its teacher, if labels tell, and what both cost."""
    by_labels = row["lines"][0]["measured"].metric.endswith("top1")
    for name, _, gain in rivals(row, titles):
        if name == TEACHER and gain.interval and by_labels:
            low, high = gain.interval
            judged = "is" if low >= -CLOSE else "is not" if high < -CLOSE else "may or may not be"
            found = f"{gain.points:+.1f} {gain.interval}"
            yield f"The student {judged} within {CLOSE} points of its teacher ({found})."
    parts = []
    for key, scale, unit in COSTS:
        student, teacher = (cost[each][key] / scale for each in ("student", "teacher"))
        parts.append(f"{student:.3g} {unit} (teacher {teacher:.3g})")
    yield f"The student has {', '.join(parts)}."


def _sentence(finding: str) -> str:
    return f"{finding[:1].upper()}{finding[1:]}."


def _compared(row: dict[str, Any], titles: dict[str, str]) -> list[str]:
    """The first metric against the other encoders, in words and in numbers."""
    others, pretrained, within = list(rivals(row, titles)), row["lines"][0]["pretrained"], ""
    judged = "No interval: differences from other encoders may be chance."
    if interval := pretrained.interval:
        within = f" (95 % interval {interval.low:.1f} to {interval.high:.1f})"
        names: dict[str, list[str]] = {}
        for name, _, found in others:
            names.setdefault(found.verdict, []).append(name if name == PIXELS else f"the {name}")
        words = [f"{IN_WORDS[verdict]} {' and '.join(each)}" for verdict, each in names.items()]
        judged = f"This encoder is {'; '.join(words)}."
    if not others:
        judged = "No baseline of this evaluation has been run."
    images = pretrained.images  # a fraction where images of a group count as fewer
    of = f" of {images:.0f} images" if images and images == round(images) else ""
    title = f"{titles[row['name']]}, {row['lines'][0]['measured'].title}"
    numbers = [f"{title}: {pretrained.number} %{of}{within}"]
    for name, other, found in others:
        paired = f" {found.interval}" if found.interval else ""
        numbers.append(f"{name} {other.number} ({found.points:+.1f}{paired})")
    if row["chance"]:
        numbers.append(f"chance {row['chance']:.1f}")
    return [judged, "; ".join(numbers) + "."]


def rivals(row: dict[str, Any], titles: dict[str, str]) -> Iterator[tuple[str, Estimate, Gain]]:
    """Name, first number and this encoder's gain for each baseline that was run, and for raw pixels."""
    first, *rest = row["lines"]
    metric = first["measured"].metric
    pixels = [line for line in rest if line["measured"].name.endswith(f"_pixels_{metric}")]
    for line in (first, *pixels):
        for baseline, (other, difference) in zip(row["baselines"], line["others"], strict=True):
            if difference:
                yield titles[baseline] if line is first else PIXELS, other, difference


def has_learnt(rows: list[dict[str, Any]], titles: dict[str, str]) -> bool:
    """Whether the encoder is better than an untrained one, if that was measured."""
    row = headline(rows)
    return not row or all(gain.verdict == "up" for name, _, gain in rivals(row, titles) if name == UNTRAINED)


def headline(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first evaluation with a number of this encoder."""
    measured = (row for row in rows if row["lines"] and isinstance(row["lines"][0]["pretrained"], Estimate))
    return next(measured, None)
