"""What the numbers of a result mean, recorded beside them for readers of the report."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple


class MetricInfo(NamedTuple):
    """A number of a result in words.

    title: its name in words.
    meaning: one line that says what it measures, and its unit unless that is percent.
    better: which direction is good; None if neither is, as for a setting.
    images: how many images a percentage counts; None for any other number.
    """

    title: str
    meaning: str
    better: Literal["higher", "lower"] | None = None
    images: int | None = None


def explanation(docstring: str | None, numbers: Mapping[str, MetricInfo]) -> dict[str, Any]:
    """What a kind measures (the first line of its docstring) and its numbers by name, as JSON."""
    about = (docstring or "").partition("\n")[0]
    return {"about": about, "numbers": {name: number._asdict() for name, number in numbers.items()}}
