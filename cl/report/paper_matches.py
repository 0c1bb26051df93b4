"""Which experiments answer the numbers that the papers print, and how to run the rest."""

import math
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cl.report import paper_tables as papers
from cl.report.experiments import Experiment, Measured, at, measured, same
from cl.report.paper_tables import Cell

Expected = Callable[[str], dict[str, Any]]  # the parameters that Hydra overrides compose to


@dataclass(frozen=True)
class Answer:
    """What a paper prints, in percent, and what our experiments have of it.

    run: how to make it, as Hydra overrides.
    computed: of a printed gain, the difference of the two printed values.
    """

    run: str | None
    printed: float | None
    ours: Measured | None
    computed: float | None = None
    quoted: str | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.printed is None or self.ours is None else self.ours.mean - self.printed

    @property
    def disagrees(self) -> bool:
        """Whether a printed gain is another than that of the printed values."""
        return (
            self.computed is not None
            and self.printed is not None
            and abs(self.computed - self.printed) > 0.05
        )

    @property
    def how(self) -> str:
        """The command that makes it."""
        return command(self.run) if self.run else ""

    def text(self) -> str:
        """For Markdown: the paper's, then ours."""
        if self.ours is None:
            return f"{_number(self.printed)} / {'quoted' if self.quoted else 'not run'}"
        gap = "" if self.difference is None else f" ({self.difference:+.1f})"
        return (
            f"{_number(self.printed)} / **{_number(self.ours.mean, self.ours.sd)}**, n = {self.ours.n}{gap}"
        )


def _number(value: float | None, sd: float | None = None) -> str:
    if value is None:
        return "?"
    return f"{value:.1f}" + ("" if sd is None else f" ± {sd:.1f}")


class Answers:
    """Which experiments answer which run of a paper."""

    def __init__(self, experiments: list[Experiment], expected: Expected) -> None:
        self.experiments, self.expected = experiments, expected
        self.kinds = {at(experiment.params, "dataset.kind") for experiment in experiments}

    def of_run(self, run: str | None, metric: str | None, baseline: str | None = None) -> Measured | None:
        """The metric of the experiments that are this run but for the seed; None if there is none."""
        if run is None or metric is None or not self.has_data_of(run):
            return None
        params = self.expected(run)
        return measured(
            [e for e in self.whole(params) if same(metric, params, e.params, baseline)], metric, baseline
        )

    def whole(self, params: dict[str, Any]) -> list[Experiment]:
        """The experiments on as many images as the papers have of the data set that these parameters name."""
        kind = at(params, "dataset.kind")
        return [
            e
            for e in self.experiments
            if at(e.params, "dataset.kind") == kind and e.images == papers.IMAGES.get(kind)
        ]

    def has_data_of(self, run: str) -> bool:
        """Whether any experiment has the recipe's data set; composing all that none can answer would take long."""
        return (
            bool(self.kinds & set(papers.IMAGES))
            and at(self.expected(run.split()[0]), "dataset.kind") in self.kinds
        )

    def missing(self, cell: Cell) -> list[str]:
        """The runs of a cell that no experiment is."""
        first = [cell.run] if cell.run and not self.of_run(cell.run, cell.metric, cell.row.baseline) else []
        return first + ([cell.minus] if cell.minus and not self.of_run(cell.minus, cell.minus_metric) else [])

    def of_cell(self, cell: Cell, printed: dict[tuple[str | None, str | None], float]) -> Answer:
        """`printed`: the paper's values by run and metric, to compute gains from."""
        ours = self.of_run(cell.run, cell.metric, cell.row.baseline)
        if cell.minus is None:
            return Answer(cell.run, cell.printed, ours, quoted=cell.row.quoted)
        other = self.of_run(cell.minus, cell.minus_metric)
        values = [printed.get(key) for key in ((cell.run, cell.metric), (cell.minus, cell.minus_metric))]
        computed = None if None in values else values[0] - values[1]  # type: ignore[operator]
        return Answer(cell.run, cell.printed, _minus(ours, other), computed, cell.row.quoted)


def _minus(ours: Measured | None, other: Measured | None) -> Measured | None:
    if ours is None or other is None:
        return None
    sd = None if ours.sd is None or other.sd is None else math.hypot(ours.sd, other.sd)
    return Measured(ours.mean - other.mean, sd, min(ours.n, other.n), [*ours.names, *other.names])


def printed_values(paper: papers.Paper) -> dict[tuple[str | None, str | None], float]:
    """What a paper prints for a run and a metric, by the first table that has it."""
    found: dict[tuple[str | None, str | None], float] = {}
    for cell in (cell for table in paper.tables for row in papers.cells(table) for cell in row):
        if (
            cell.minus is None
            and cell.run is not None
            and cell.printed is not None
            and cell.row.quoted is None
        ):
            found.setdefault((cell.run, cell.metric), cell.printed)
    return found


def command(run: str) -> str:
    """How to make it; several values of a key are a sweep."""
    queue = "--queue " if "," in run and "[" not in run else ""
    return f"dvc exp run {queue}" + " ".join(f"-S {shlex.quote(word)}" for word in run.split())


def commands(runs: Iterable[str]) -> list[str]:
    """The commands that make these runs: those of one recipe that name the same keys as one sweep."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for run in dict.fromkeys(runs):
        words = dict(word.split("=", 1) for word in run.split())
        groups.setdefault((words.get("recipe", ""), *words), []).append(words)
    found = []
    for (_, *keys), group in groups.items():
        grid = {key: list(dict.fromkeys(words[key] for words in group)) for key in keys}
        if math.prod(map(len, grid.values())) == len(group) and not any(
            "[" in v for values in grid.values() for v in values
        ):
            found.append(command(" ".join(f"{key}={','.join(values)}" for key, values in grid.items())))
        else:
            found += [command(" ".join(f"{key}={value}" for key, value in words.items())) for words in group]
    return found
