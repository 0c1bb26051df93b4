"""Numbers and names in messages."""

import re

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
