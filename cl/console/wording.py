"""Numbers in messages."""

import re

PLURAL = re.compile(r"(?<=[sx])es\b|s\b")


def counted(number: int, things: str) -> str:
    """The number and the plural `things`, made singular for 1: "2 test images", "1 test image"."""
    return f"{number} {PLURAL.sub('', things, count=1) if number == 1 else things}"


def memory(size: float) -> str:
    """A number of bytes to three digits."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size / 1e3:.3g} kB"
