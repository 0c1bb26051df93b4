"""The first sentences of a report: is the encoder good, and has it finished learning?"""

from collections.abc import Iterator
from typing import Any

from cl.report.intervals import Estimate
from cl.report.rows import Gain, gain

IN_WORDS = {"up": "better than", "down": "worse than", "": "not clearly different from"}


def answer(rows: list[dict[str, Any]], baselines: dict[str, str], pretraining: dict[str, Any]) -> list[str]:
    """Up to three sentences; a collapse comes first.

    Args:
        rows: evaluations and transfers, as in `cl.report.rows`.
        baselines: in words, by name.
        pretraining: its provenance.
    """
    sentences = _compared(rows, baselines)
    if finding := pretraining.get("verdict"):
        place = 0 if collapsed(pretraining) else len(sentences)
        sentences.insert(place, f"{finding[:1].upper()}{finding[1:]}.")
    return sentences


def collapsed(pretraining: dict[str, Any]) -> bool:
    """Whether pretraining with this provenance ended in a collapse."""
    return pretraining.get("state") == "collapsed"


def _compared(rows: list[dict[str, Any]], baselines: dict[str, str]) -> list[str]:
    """The first metric in words against the baselines and raw pixels, and its numbers."""
    firsts = [(row, row["lines"][0]) for row in rows if row["lines"]]
    measured = [(row, line) for row, line in firsts if isinstance(line["pretrained"], Estimate)]
    if not measured:
        return ["Nothing has been evaluated yet."]
    row, line = measured[0]
    pretrained, others = line["pretrained"], list(_others(row, line, baselines))
    by_verdict: dict[str, list[str]] = {}
    for name, _, difference in others:
        by_verdict.setdefault(IN_WORDS[difference.verdict], []).append(f"the {name}")
    judged = "; ".join(f"{words} {' and '.join(names)}" for words, names in by_verdict.items())
    within = pretrained.interval
    if not others:
        judged = "This encoder has no baseline to compare with."
    elif not within:
        judged = "Without an interval, differences from the other encoders may be chance."
    else:
        judged = f"This encoder is {judged}."
    between = f" (95 % interval {within.low:.1f} to {within.high:.1f})" if within else ""
    numbers = [f"{name} {other.number} ({difference.points:+.1f})" for name, other, difference in others]
    return [
        judged,
        "; ".join([f"{row['title']}, {line['title']}: {pretrained.number} %{between}", *numbers]) + ".",
    ]


def _others(
    row: dict[str, Any], first: dict[str, Any], baselines: dict[str, str]
) -> Iterator[tuple[str, Estimate, Gain]]:
    """Name, number and this encoder's gain for each baseline that was run, and for raw pixels."""
    pretrained, better = first["pretrained"], first["better"]
    found = [
        (f"{baselines[name]} encoder", other)
        for name, (other, _) in zip(row["baselines"], first["others"], strict=True)
    ]
    for line in row["lines"]:
        pixels = line["measured"].representation == "pixels"
        if pixels and line["measured"].metric == first["measured"].metric:
            found += [("raw pixels", other) for other, _ in line["others"]]
    for name, other in found:
        if isinstance(other, Estimate) and (difference := gain(pretrained, other, better)):
            yield name, other, difference
