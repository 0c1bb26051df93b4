"""The rows of docs/results/gpu_table.md: what they measure, their results in a CSV file, and the page."""

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import BeforeValidator

from benchmarks import rows
from cl.console.wording import counted
from cl.runtime.base_config import BaseConfig
from cl.statistics import interval, interval_of_mean

ROWS, REHEARSAL = Path(__file__).with_name("table.yaml"), "rehearsal"
TITLES = "| row | printed | source | ours | 95 % interval | gap | seeds | seconds | images/s | made with |"


def flat(values: Iterable[Any]) -> list[str]:
    """The words of nested lists, as YAML's anchors make them; if a key stands twice, the last one counts."""
    words: dict[str, str] = {}
    for value in values:
        for word in [value] if isinstance(value, str) else flat(value):
            words[word.partition("=")[0]] = word
    return list(words.values())


class Row(BaseConfig):
    """What table.yaml says about a row; its head explains the fields."""

    overrides: Annotated[list[str], BeforeValidator(flat)]
    measure: str
    source: str
    printed: float | None = None
    seeds: int = 1


class Result(NamedTuple):
    """The result of one seed.

    images: how many independent images the value counts, if it is a percentage. seconds: of training.
    made_with: card, driver, versions, precision, commit and date.
    """

    row: str
    seed: int
    value: float
    images: float | None
    seconds: float
    images_per_second: float
    made_with: str


CELLS: dict[str, Any] = {"row": str, "seed": int, "made_with": str}  # other columns are numbers


def known() -> dict[str, Row]:
    """The rows of table.yaml."""
    return {name: Row(**values) for name, values in yaml.safe_load(ROWS.read_text()).items()}


def read(folder: Path) -> list[Result]:
    """The results so far."""
    found = rows.read(folder / "gpu_table.csv", Result._fields)
    return [
        Result(**{name: CELLS.get(name, float)(cell) if cell else None for name, cell in line.items()})
        for line in found
    ]


def add(folder: Path, result: Result) -> None:
    """Add a result to the CSV file, and write the page's table again; what is above it stays."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = ["" if value is None else value for value in result]
    rows.append(folder / "gpu_table.csv", Result._fields, [cells])
    page = folder / "gpu_table.md"
    head = page.read_text().partition(TITLES)[0] if page.exists() else ""
    page.write_text(head + table(read(folder)))


def table(results: list[Result]) -> str:
    """The rows that have results, in Markdown, and the number of the others."""
    rows_of = {name: [result for result in results if result.row == name] for name in known()}
    rows_of.pop(REHEARSAL)
    lines = [TITLES, "|---" * (TITLES.count("|") - 1) + "|"]
    lines += [_line(name, found) for name, found in rows_of.items() if found]
    if left := sum(not found for found in rows_of.values()):
        lines += ["", f"Not yet run: {counted(left, 'rows')}."]
    return "\n".join(lines) + "\n"


def _line(name: str, results: list[Result]) -> str:
    row = known()[name]
    printed = f"{row.printed:,g}" if row.printed else ""
    values = [result.value for result in results]
    mean = fmean(values)
    within = interval_of_mean(values) or interval(mean, results[0].images)
    digits = ".1f" if results[0].images else ",.0f"
    gap = f"{mean - row.printed:+{digits}}" if row.printed else ""
    made_with = "; ".join(dict.fromkeys(result.made_with for result in results))
    seconds = fmean(result.seconds for result in results)
    cells = [
        f"`{name}`",
        printed,
        row.source,
        f"{mean:{digits}}",
        str(within or ""),
        gap,
        f"{len(values)} of {row.seeds}",
        f"{seconds:,.0f}" if seconds >= 1000 else f"{seconds:.4g}",
        f"{fmean(result.images_per_second for result in results):,.0f}",
        made_with,
    ]
    return f"| {' | '.join(cells)} |"
