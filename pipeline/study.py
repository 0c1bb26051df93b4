"""study: the experiments of docs/studies/<name>.yaml, and what they decide, in docs/results/<name>.md."""

import csv
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline import command

if TYPE_CHECKING:
    from cl.report.studies import Row, Study

STUDIES, RESULTS = Path("docs/studies"), Path("docs/results")


@click.command()
@click.argument("name")
@click.option(
    "--run", is_flag=True, help="Run what is missing here, one after another, instead of queueing it."
)
@command.entry_point
def main(name: str, run: bool) -> None:
    """Queue the missing experiments of study NAME, and write docs/results/NAME.md about the finished ones.

    A finished experiment becomes a row of docs/results/NAME.csv, and is not run again: stop at any time.
    """
    study = load(name)
    write(name, study)
    missing = _missing(name, study)
    if run:
        for arm, seed in missing:
            _experiment(name, study, arm, seed, "--temp")
            write(name, study)
    else:
        waiting = _queued()
        for arm, seed in missing:
            if label(name, arm, seed) not in waiting:
                _experiment(name, study, arm, seed, "--queue")
    if missing and not run:
        click.echo("`dvc queue start` works the queue off; then run this command again", err=True)
    click.echo(RESULTS / f"{name}.md")


def load(name: str) -> "Study":
    """Read a study.

    Raises:
        ValueError: there is none of this name, or it is not valid.
    """
    from cl import config
    from cl.report.studies import Study
    from cl.runtime.base_config import suggestion

    path = STUDIES / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(
            f"no study {path}{suggestion(name, sorted(each.stem for each in STUDIES.glob('*.yaml')))}"
        )
    try:
        return config.validated(Study, config.read(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def label(name: str, arm: str, seed: int) -> str:
    """The name of an experiment."""
    return f"{name}-{arm}-{seed}"


def rows(name: str, study: "Study") -> "list[Row]":
    """The finished experiments that were recorded.

    Raises:
        ValueError: some were run before the study was changed.
    """
    from cl.report.studies import Row

    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        found = [
            Row(*(kind(row[column]) for column, kind in Row.__annotations__.items()))
            for row in csv.DictReader(file)
        ]
    for row in found:
        if row.arm in study.arms and row.settings != study.fingerprint(row.arm):
            raise ValueError(
                f"{path} has runs of arm {row.arm} whose settings or metric are not those of "
                f"{STUDIES / name}.yaml; delete these rows to run them again, or undo the change of the study"
            )
    return found


def write(name: str, study: "Study") -> None:
    """Record what has finished, and write the page and its figure."""
    from cl.report import studies

    found = rows(name, study)
    if new := _finished(name, study, {(row.arm, row.seed) for row in found}):
        with (RESULTS / f"{name}.csv").open("a", newline="") as file:
            titles = [] if found else [studies.Row._fields]
            csv.writer(file, lineterminator="\n").writerows([*titles, *new])
    found = [row for row in [*found, *new] if row.arm in study.arms and row.seed in study.seeds]
    drawn = studies.chart(name, study, found)
    if drawn.series:
        (RESULTS / f"{name}.svg").write_text(drawn.svg())
    (RESULTS / f"{name}.md").write_text(studies.page(name, study, found))


def _finished(name: str, study: "Study", known: set[tuple[str, int]]) -> "list[Row]":
    """Rows of experiments that have finished since.

    Raises:
        ValueError: one was run with other parameters, or does not have the metric.
    """
    from cl.report.studies import Row
    from pipeline.collect import collect

    experiments = {each.name: each for each in collect(lambda sentence: click.echo(sentence, err=True))}
    found = []
    for arm, seed in ((arm, seed) for seed in study.seeds for arm in study.arms):
        experiment = experiments.get(label(name, arm, seed))
        if (arm, seed) in known or experiment is None:
            continue
        if experiment.params != _parameters(study.overrides(arm, seed)):
            raise ValueError(
                f"experiment {experiment.name} has other parameters than the study asks for now; "
                f"`dvc exp remove {experiment.name}`, then run this command again"
            )
        if study.metric not in experiment.metrics:
            raise ValueError(
                f"{experiment.name} has no {study.metric}; it has {', '.join(sorted(experiment.metrics))}"
            )
        made = experiment.provenance["pretrain"]
        settings = study.fingerprint(arm)
        value, seconds = experiment.metrics[study.metric], round(made["seconds"])
        found.append(Row(arm, seed, value, seconds, made["commit"][:10], settings))
    return found


def _parameters(overrides: list[str]) -> dict[str, Any]:
    """The parameters that DVC composes from these overrides."""
    from cl.config import read
    from pipeline.compose import compose

    with tempfile.TemporaryDirectory() as folder:
        compose(Path(folder) / "params.yaml", overrides)
        return read(Path(folder) / "params.yaml")


def _missing(name: str, study: "Study") -> list[tuple[str, int]]:
    known = {(row.arm, row.seed) for row in rows(name, study)}
    return [(arm, seed) for seed in study.seeds for arm in study.arms if (arm, seed) not in known]


def _queued() -> set[str]:
    """The names of experiments that wait or run; a failed one is queued again."""
    lines = subprocess.run(
        ["dvc", "queue", "status"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    words = [line.split() for line in lines]
    return {line[1] for line in words if len(line) > 2 and line[-1] in ("Queued", "Running")}


def _experiment(name: str, study: "Study", arm: str, seed: int, how: str) -> None:
    """Queue or run an experiment.

    Raises:
        ValueError: DVC fails, after saying why.
    """
    settings = [word for override in study.overrides(arm, seed) for word in ("-S", override)]
    what = label(name, arm, seed)
    environment = {
        **os.environ,
        "CL_SCRATCH": str(command.scratch().resolve()),
    }  # it can be resumed from there
    if subprocess.run(["dvc", "exp", "run", how, "--name", what, *settings], env=environment).returncode:
        raise ValueError(f"{what} failed; run this command again to go on")


if __name__ == "__main__":
    main()
