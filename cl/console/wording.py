"""Numbers of things in messages."""

import re

PLURAL = re.compile(r"(?<=[sx])es\b|s\b")


def counted(number: int, things: str) -> str:
    """The number and what it counts, a plural: "2 test images", "1 test image"."""
    return f"{number} {PLURAL.sub('', things, count=1) if number == 1 else things}"
