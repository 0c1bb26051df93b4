"""The first sentences of a report: is the encoder good, and has it finished learning?"""

from collections.abc import Iterator
from typing import Any

from cl.report.rows import Gain, gain
from cl.statistics import Estimate

PIXELS = "raw pixels"
IN_WORDS = {"up": "better than", "down": "worse than", "": "not clearly different from"}


def answer(rows: list[dict[str, Any]], titles: dict[str, str], pretraining: dict[str, Any]) -> list[str]:
    """Up to four sentences on evaluations (`cl.report.rows`) and provenance.

    A collapse comes first, then whether an adapted encoder is better than its start.

    Args:
        titles: evaluations and baselines in words, by name.
    """
    sentences = ["This encoder has not been evaluated yet."]
    for row in reversed(rows):
        if row["lines"] and isinstance(row["lines"][0]["pretrained"], Estimate):
            sentences = _compared(row, titles)
    if adaptation := pretraining.get("adaptation"):
        sentences.insert(0, _sentence(adaptation["sentence"]))
    if finding := pretraining.get("verdict"):
        place = 0 if pretraining.get("state") == "collapsed" else len(sentences)
        sentences.insert(place, _sentence(finding))
    return sentences


def _sentence(finding: str) -> str:
    return f"{finding[:1].upper()}{finding[1:]}."


def _compared(row: dict[str, Any], titles: dict[str, str]) -> list[str]:
    """The first metric against the other encoders, in words and in numbers."""
    others, pretrained, within = list(_others(row, titles)), row["lines"][0]["pretrained"], ""
    judged = "No interval: differences from other encoders may be chance."
    if interval := pretrained.interval:
        within = f" (95 % interval {interval.low:.1f} to {interval.high:.1f})"
        by_verdict: dict[str, list[str]] = {}
        for name, _, found in others:
            by_verdict.setdefault(IN_WORDS[found.verdict], []).append(
                name if name == PIXELS else f"the {name}"
            )
        words = [f"{verdict} {' and '.join(names)}" for verdict, names in by_verdict.items()]
        judged = f"This encoder is {'; '.join(words)}."
    if not others:
        judged = "No baseline of this evaluation has been run."
    images = pretrained.images  # a fraction where images of a group count as fewer
    of = f" of {images:.0f} images" if images and images == round(images) else ""
    title = f"{titles[row['name']]}, {row['lines'][0]['measured'].title}"
    numbers = [f"{title}: {pretrained.number} %{of}{within}"]
    numbers += [f"{name} {other.number} ({found.points:+.1f})" for name, other, found in others]
    return [judged, "; ".join(numbers) + "."]


def _others(row: dict[str, Any], titles: dict[str, str]) -> Iterator[tuple[str, Estimate, Gain]]:
    """Name, number and this encoder's gain for each baseline that was run, and for raw pixels."""
    first = row["lines"][0]
    for line in row["lines"]:
        if line["measured"].metric != first["measured"].metric:
            continue
        for name, (other, _) in zip(row["baselines"], line["others"], strict=True):
            difference = gain(first["pretrained"], other, line["measured"].better)
            if line is first and difference:
                yield f"{titles[name]} encoder", other, difference
            elif line["measured"].representation == "pixels" and difference:
                yield PIXELS, other, difference
