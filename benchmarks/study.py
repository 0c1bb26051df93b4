"""study: the experiments of docs/studies/<name>.yaml, and what they decide."""

import copy
import json
import math
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from benchmarks import in_process, plans, studies
from benchmarks.rows import append, read
from benchmarks.sigterm import exits_on_sigterm
from benchmarks.studies import Row, Study, arm_and_metric
from cl import config
from cl.data.reader import Reader
from cl.runtime.base_config import suggestion
from cl.runtime.files import exclusive
from pipeline.composition.compose import compose
from pipeline.support import command, locations
from pipeline.support.collect import collect, put_used_values

STUDIES, RESULTS = Path("docs/studies"), Path("docs/results")
OLDER = (Row._fields.index("plan"), Row._fields.index("data"))  # columns of older rows


@click.command()
@click.argument("name")
@click.option(
    "--run", is_flag=True, help="Run what is missing here, one after another, instead of queueing it."
)
@click.option(
    "--short", is_flag=True, help="The same in this process without DVC, for runs of less than some minutes."
)
@command.entry_point
def main(name: str, run: bool, short: bool) -> None:
    """Queue the missing experiments of study NAME, and print what the finished ones decide.

    A finished experiment becomes a row of docs/results/NAME.csv, and is not run again: stop at any time.
    Nothing runs unless docs/studies/NAME.yaml and all code are committed as they are here.
    """
    study = load(name)
    with exits_on_sigterm(), exclusive(locations.scratch() / "studies" / name, RESULTS / f"{name}.csv"):
        record(name, study)
        missing = _missing(name, study)
        if missing:
            _check_may_run(name, study, missing)
        if short and missing:
            _in_process(name, study, missing)
            missing = []
        waiting = _queued() if missing else set()
        for arm, seed in missing:
            if (experiment := label(name, arm, seed)) not in waiting:
                plans.registered(STUDIES / f"{name}.yaml")
                _experiment(name, study, arm, seed, "--temp" if run else "--queue")
            elif run:
                click.echo(
                    f"{experiment} is in DVC's queue: `dvc queue remove {experiment}` to run it here",
                    err=True,
                )
            if run:
                record(name, study)
    if missing and (waiting or not run):
        scratch = shlex.quote(str(locations.scratch().resolve()))  # DVC's workers do not inherit it from here
        click.echo(
            f"run `CL_SCRATCH={scratch} dvc queue start`, then this command again to record the results",
            err=True,
        )
    click.echo(studies.page(study, of_study(study, rows(name, study))))


def load(name: str) -> Study:
    """Read a study.

    Raises:
        ValueError: no study has this name, or it is not valid.
    """
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


def rows(name: str, study: Study) -> list[Row]:
    """The finished experiments that were recorded.

    Raises:
        ValueError: some were run before the study was stated or changed, or a row is damaged.
    """
    path = RESULTS / f"{name}.csv"
    found: dict[tuple[str, int], Row] = {}
    for number, cells in enumerate(read(path, Row._fields, older=OLDER), 2):
        try:
            row = Row(**{column: Row.__annotations__[column](cell) for column, cell in cells.items()})
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        if not math.isfinite(row.value):
            raise ValueError(
                f"{path}, line {number}: the value must be finite, found {row.value}; delete the row"
            )
        if row.arm in study.quantities and row.settings != study.fingerprint(row.arm):
            raise ValueError(
                f"{path} has runs of arm {row.arm} whose settings or metric are not those of "
                f"{STUDIES / name}.yaml; delete these rows to run them again, or undo the change of the study"
            )
        if found.setdefault((row.arm, row.seed), row) is not row:
            raise ValueError(
                f"{path}, line {number}: {row.arm} with seed {row.seed} is there twice; delete one"
            )
    plans.check(STUDIES / f"{name}.yaml", study, list(found.values()))
    return list(found.values())


def record(name: str, study: Study) -> None:
    """Add the experiments that have finished since."""
    known = {(row.arm, row.seed) for row in rows(name, study)}
    if new := _finished(name, study, known):
        _append(name, study, new)


def _append(name: str, study: Study, new: list[Row]) -> None:
    """Add rows.

    Raises:
        ValueError: their images are not those of other arms and seeds that have the same parameters of data.
    """
    kinds = {arm: json.dumps(compose(study.overrides(arm, study.seeds[0]))["dataset"]) for arm in study.arms}
    known: dict[str, Row] = {}
    for row in (*of_study(study, rows(name, study)), *new):
        kind = kinds[arm_and_metric(row.arm)[0]]
        if row.data and (other := known.setdefault(kind, row)).data != row.data:
            raise ValueError(
                f"{name}: {row.arm} with seed {row.seed} ran on images {row.data}, {other.arm} with seed "
                f"{other.seed} on {other.data}: restore the images, or state a new study"
            )
    append(RESULTS / f"{name}.csv", Row._fields, new)


def of_study(study: Study, found: list[Row]) -> list[Row]:
    """Without those of quantities and seeds that the study does not have."""
    return [row for row in found if row.arm in study.quantities and row.seed in study.seeds]


def _finished(name: str, study: Study, known: set[tuple[str, int]]) -> list[Row]:
    """Rows of experiments that have finished since.

    Raises:
        ValueError: one was run with other parameters or before the plan, or does not have the metric.
    """
    experiments = {each.name: each for each in collect(lambda sentence: click.echo(sentence, err=True))}
    found = []
    for arm, seed in ((arm, seed) for seed in study.seeds for arm in study.arms):
        experiment = experiments.get(label(name, arm, seed))
        wanted = [each for each in study.of(arm) if (each, seed) not in known]
        if not wanted or experiment is None:
            continue
        expected = compose(study.overrides(arm, seed))
        fitted = copy.deepcopy(expected)
        del fitted["overrides"]  # `collect` leaves them out
        put_used_values(fitted, experiment.provenance)
        if experiment.params != fitted:
            raise ValueError(
                f"experiment {experiment.name} was run with parameters that differ from the study's; "
                f"`dvc exp remove {experiment.name}`, then run this command again"
            )
        made = experiment.provenance.get("pretrain", {})
        if not made or (metric := _unusable(study, wanted, experiment.metrics)):
            reasons = experiment.problems or ["its results are " + ", ".join(sorted(experiment.metrics))]
            what = f"no usable {metric if made else 'results'} of a pretrained encoder: {'; '.join(reasons)}"
            raise ValueError(
                f"experiment {experiment.name} has {what}; `dvc exp remove {experiment.name}`, then run this "
                "command again"
            )
        plan = plans.of_run(STUDIES / f"{name}.yaml", made, experiment.name)
        found += _rows(study, wanted, seed, experiment.metrics, made, plan, expected)
    return found


def _unusable(study: Study, quantities: list[str], metrics: Mapping[str, float]) -> str | None:
    """The first metric of these quantities that is missing or not finite."""
    wanted = (study.quantities[each][1] for each in quantities)
    return next((metric for metric in wanted if not math.isfinite(metrics.get(metric, math.nan))), None)


def _rows(
    study: Study,
    quantities: list[str],
    seed: int,
    metrics: Mapping[str, float],
    made: Mapping[str, Any],
    plan: plans.Plan,
    composed: dict[str, Any],
) -> list[Row]:
    """Of a finished run; `made`: the seconds that pretraining took, and the hash of the images."""
    seconds, data = round(made["seconds"]), made["data_manifest_sha256"][: plans.DIGITS]
    end = plan.blob, plans.parameters_hash(composed), data
    return [
        Row(each, seed, metrics[metric], seconds, plan.commit, study.fingerprint(each), *end)
        for each, metric in ((each, study.quantities[each][1]) for each in quantities)
    ]


def _in_process(name: str, study: Study, missing: list[tuple[str, int]]) -> None:
    """Run the missing experiments, and record each."""
    path = STUDIES / f"{name}.yaml"
    plan = plans.registered(path)
    with tempfile.TemporaryDirectory() as folder:
        prepared: dict[str, tuple[list[Reader], str]] = {}
        for arm, seed in missing:
            plans.registered(path, plan.commit)
            composed = compose(study.overrides(arm, seed))
            params = config.check(composed)
            data = params.dataset.model_dump_json()
            if data not in prepared:
                place = Path(folder) / str(len(prepared))
                prepared[data] = in_process.shards(params, place), locations.manifest_hash(place)
            readers, images = prepared[data]
            metrics, seconds = in_process.run(params, readers)
            if metric := _unusable(study, study.of(arm), metrics):
                found = ", ".join(sorted(metrics))
                raise ValueError(f"{arm} with seed {seed} has no usable {metric}; its results are {found}")
            made = {"seconds": seconds, "data_manifest_sha256": images}
            _append(name, study, _rows(study, study.of(arm), seed, metrics, made, plan, composed))


def _check_may_run(name: str, study: Study, missing: list[tuple[str, int]]) -> None:
    """Check that the plan is registered, and that arms with rows still have their parameters.

    Raises:
        ValueError: they are not; see `plans`.
    """
    path = STUDIES / f"{name}.yaml"
    if study.registration:
        raise ValueError(f"{path} is older than registered plans, so it cannot get rows: state a new study")
    plans.registered(path)
    known = rows(name, study)
    for arm in dict.fromkeys(arm for arm, _ in missing):
        plans.check_parameters(study, known, arm)


def _missing(name: str, study: Study) -> list[tuple[str, int]]:
    known = {(row.arm, row.seed) for row in rows(name, study)}
    runs = [(arm, seed) for seed in study.seeds for arm in study.arms]
    return [(arm, seed) for arm, seed in runs if any((each, seed) not in known for each in study.of(arm))]


def _queued() -> set[str]:
    """The names of queued or running experiments; a failed one is queued again."""
    lines = subprocess.run(
        ["dvc", "queue", "status"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    words = [line.split() for line in lines]
    return {line[1] for line in words if len(line) > 2 and line[-1] in ("Queued", "Running")}


def _experiment(name: str, study: Study, arm: str, seed: int, how: str) -> None:
    """Queue or run an experiment.

    Raises:
        ValueError: DVC fails, after saying why.
    """
    settings = [word for override in study.overrides(arm, seed) for word in ("-S", override)]
    what = label(name, arm, seed)
    with tempfile.TemporaryDirectory() as folder:
        stop = Path(folder) / "stop"
        places = {"CL_SCRATCH": str(locations.scratch().resolve()), "CL_STOP": str(stop)}
        process = subprocess.Popen(
            ["dvc", "exp", "run", how, "--name", what, *settings], env={**os.environ, **places}
        )
        try:
            failed = process.wait()
        except BaseException:
            stop.touch()  # a signal would end DVC before the stage has saved
            process.wait()
            raise
    if failed:
        raise ValueError(f"{what} failed; run this command again to continue")


if __name__ == "__main__":
    main()
