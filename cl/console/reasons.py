"""Why files are left out, counted: messages that differ only in their numbers are one reason."""

import re
from collections import Counter

from cl.console.wording import counted

NUMBER = re.compile(r"(\d+)")
MOST = 5  # reasons are printed


def grouped(reasons: Counter[str]) -> Counter[str]:
    """Add up reasons that differ only in their numbers; N stands for numbers that are not all the same.

    Pillow's messages contain sizes and positions, and a file's suffix may be part of a long number.
    """
    messages: dict[str, list[str]] = {}
    counts = Counter[str]()
    for reason, count in reasons.items():
        parts, kind = NUMBER.split(reason), NUMBER.sub("\0", reason)
        pairs = zip(parts, messages.get(kind, parts), strict=True)
        messages[kind] = [part if part == other else "N" for part, other in pairs]
        counts[kind] += count
    found = Counter[str]()
    for kind, count in counts.items():
        found["".join(messages[kind])] += count
    return found


def lines(reasons: Counter[str], things: str = "files") -> list[str]:
    """A line for each of the most frequent reasons, and one for all others."""
    ranked = grouped(reasons).most_common()
    said = [f"left out {counted(count, things)}: {reason}" for reason, count in ranked[:MOST]]
    if rest := ranked[MOST:]:
        others = counted(sum(count for _, count in rest), things)
        said.append(f"left out {others} for {counted(len(rest), 'other reasons')}")
    return said
