"""Count why files are left out; messages that differ only in their numbers are one reason."""

import re
from collections import Counter

from cl.console.wording import counted

NUMBER = re.compile(r"(\d+)")
MOST = 5  # printed reasons
SUFFIX = "with suffix "


def grouped(reasons: Counter[str]) -> Counter[str]:
    """Add up reasons that differ only in their numbers; N replaces the numbers that differ.

    Pillow's messages contain sizes and positions, and a file's suffix may be part of a long number.
    """
    messages: dict[str, list[str]] = {}
    counts = Counter[str]()
    for reason, count in reasons.items():
        parts, template = NUMBER.split(reason), NUMBER.sub("\0", reason)
        pairs = zip(parts, messages.get(template, parts), strict=True)
        messages[template] = [part if part == other else "N" for part, other in pairs]
        counts[template] += count
    total = Counter[str]()
    for template, count in counts.items():
        total["".join(messages[template])] += count
    return total


def lines(reasons: Counter[str], things: str = "files") -> list[str]:
    """A line for each of the most frequent reasons, and one for all others."""
    ranked = _with_one_line_for_suffixes(grouped(reasons)).most_common()
    text = [f"left out {counted(count, things)}: {reason}" for reason, count in ranked[:MOST]]
    if rest := ranked[MOST:]:
        others = counted(sum(count for _, count in rest), things)
        text.append(f"left out {others} for {counted(len(rest), 'other reasons')}")
    return text


def _with_one_line_for_suffixes(counts: Counter[str]) -> Counter[str]:
    """The files with other suffixes than an image's as one reason, which names the most frequent ones."""
    suffixes = {reason: count for reason, count in counts.most_common() if reason.startswith(SUFFIX)}
    shown = ", ".join(reason.removeprefix(SUFFIX) for reason in list(suffixes)[:MOST])
    more = ", ..." if len(suffixes) > MOST else ""
    return counts - Counter(suffixes) + Counter({f"{SUFFIX}{shown}{more}": sum(suffixes.values())})
