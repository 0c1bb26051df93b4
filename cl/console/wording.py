"""Numbers, names, and reasons why files are left out, in messages."""

import re
from collections import Counter

NUMBER = re.compile(r"(\d+)")
MOST = 5  # printed reasons
SUFFIX = "with suffix "
PLURAL = re.compile(r"(?<=[sx])es\b|s\b")


def counted(number: int, things: str) -> str:
    """The number and the plural `things`, made singular for 1: "2 test images", "1 test image"."""
    return f"{number} {PLURAL.sub('', things, count=1) if number == 1 else things}"


def duration(seconds: float) -> str:
    """A time in its two largest units: "45 s", "12 min", "2 h 5 min", "3 days 4 h"."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, days = minutes // 60, round(minutes / 60) // 24
    if not hours:
        return f"{minutes} min"
    if not days:
        return f"{hours} h {minutes % 60} min"
    return f"{counted(days, 'days')} {round(minutes / 60) % 24} h"


def printable(text: str) -> str:
    """The text with escaped control characters, which in the name of a file could command the terminal."""
    return "".join(x if x.isprintable() or x == "\n" else ascii(x)[1:-1] for x in text)


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
