"""The experiments that reproduce the papers' printed numbers, and the commands for the missing ones."""

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cl.report import paper_tables
from cl.report.experiments import Experiment, is_same_measurement, mean_over_seeds, value_at
from cl.report.paper_tables import Cell
from cl.statistics import Estimate, difference

Compose = Callable[[str], dict[str, Any]]  # from Hydra overrides to the parameters they compose to


@dataclass(frozen=True)
class PaperMatch:
    """A number that a paper prints, in percent, and ours.

    run: the Hydra overrides that reproduce it.
    quoted: the source, if the paper quotes the number.
    missing: the runs behind it that no experiment reproduces.
    """

    run: str | None
    printed: float | None
    ours: Estimate | None
    quoted: str | None = None
    missing: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.printed is None or self.ours is None else self.ours.mean - self.printed

    @property
    def verdict(self) -> str:
        """Whether ours is higher (`up`) or lower (`down`); empty if the paper's number is in our interval."""
        if self.printed is None or self.ours is None or self.ours.interval is None:
            return ""
        low, high = self.ours.interval
        if low <= self.printed <= high:
            return ""
        return "up" if self.ours.mean > self.printed else "down"

    @property
    def how(self) -> str:
        """The command that reproduces it; empty without a run."""
        return command(self.run) if self.run else ""

    def text(self) -> str:
        """The paper's number, then ours, for Markdown."""
        printed = "?" if self.printed is None else f"{self.printed:.1f}"
        if self.ours is None:
            return f"{printed} / {'quoted' if self.quoted else 'not run'}"
        gap = "" if self.difference is None else f" ({self.difference:+.1f})"
        return f"{printed} / **{self.ours.number}**, n = {self.ours.n}{gap}"


class PaperMatches:
    """Finds the experiments that reproduce the runs of a paper."""

    def __init__(self, experiments: list[Experiment], compose: Compose) -> None:
        self.experiments = experiments
        self.compose = compose
        self.kinds = {value_at(experiment.params, "dataset.kind") for experiment in experiments}

    def result_of_run(
        self, run: str | None, metric: str | None, baseline: str | None = None
    ) -> Estimate | None:
        """The metric's mean over the experiments equal to this run except for the seed, if there are any."""
        if run is None or metric is None or not self.has_data_of(run):
            return None
        params = self.compose(run)
        matching = [
            experiment
            for experiment in self.full_size(params)
            if (found := experiment.find(metric, baseline))
            and is_same_measurement(found, params, experiment.params)
        ]
        return mean_over_seeds(matching, metric, baseline)

    def full_size(self, params: dict[str, Any]) -> list[Experiment]:
        """The experiments on the data set of these parameters with as many images as in the papers."""
        kind = value_at(params, "dataset.kind")
        return [
            experiment
            for experiment in self.experiments
            if value_at(experiment.params, "dataset.kind") == kind
            and experiment.images == paper_tables.IMAGES.get(kind)
        ]

    def has_data_of(self, run: str) -> bool:
        """Whether any experiment uses the data set of the run's recipe; avoids composing most runs."""
        if not self.kinds & set(paper_tables.IMAGES):
            return False
        recipe = run.split()[0]
        return value_at(self.compose(recipe), "dataset.kind") in self.kinds

    def match(self, cell: Cell) -> PaperMatch:
        """A cell with our number."""
        ours = self.result_of_run(cell.run, cell.metric, cell.row.baseline)
        missing = [cell.run] if cell.run and not ours else []
        if cell.minus is not None:
            other = self.result_of_run(cell.minus, cell.minus_metric)
            missing += [] if other else [cell.minus]
            ours = difference(ours, other) if ours and other else None
        return PaperMatch(cell.run, cell.printed, ours, cell.row.quoted, tuple(missing))


def command(run: str) -> str:
    """The command that runs these overrides."""
    return "dvc exp run " + " ".join(f"-S {shlex.quote(word)}" for word in run.split())


def commands(runs: Iterable[str]) -> list[str]:
    """The commands for these runs, each once."""
    return [command(run) for run in dict.fromkeys(runs)]
