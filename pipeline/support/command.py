"""What the stages share: parameters, results with their provenance, loggers, and ways on after a failure."""

import functools
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from cl.config import Params, load, read
from cl.console import command, launch
from cl.console.command import is_main_process
from cl.console.loggers import Loggers
from cl.console.progress import USAGE, Progress
from cl.console.stop import StoppedError
from cl.runtime import machine
from cl.runtime.machine import Machine
from cl.runtime.metric_info import Measurement, Runs, flat, rounded
from pipeline.support import locations, provenance

Numbers = dict[str, dict[str, float]]  # by representation and metric
RESULTS = Path("results")
LESS_MEMORY = (
    "train with a smaller batch_size, on a GPU with precision=bf16, or in pretraining with "
    "optim.microbatches=4 and bn_group=16 (for a vision transformer backbone.checkpointing=true); "
    "`python -m pipeline.plan` says whether it fits"
)


def entry_point(function: Callable[..., None]) -> Callable[..., None]:
    """As `cl.console.command.entry_point`, with the loggers in CL_LOG; DVC's users learn how to go on."""
    return _next_step_after_failure()(command.entry_point(_logging()(function), LESS_MEMORY))


@contextmanager
def _next_step_after_failure() -> Iterator[None]:
    """If a stage fails under DVC, say below the error how to undo the run, and how to start it again."""
    try:
        yield
    except StoppedError:
        raise
    except (Exception, SystemExit) as error:
        failed = getattr(error, "code", 1) not in (0, *command.STOPPED)
        if not failed or os.environ.get("DVC_STAGE") in (None, "check") or "RANK" in os.environ:
            raise
        if isinstance(error, click.ClickException):
            error.show()
        if overrides := provenance.params().get("overrides"):
            click.echo(f"to start this run again: {provenance.command(overrides)}", err=True)
        # A temporary copy of the project has nothing to undo, and neither has a first run.
        if not locations.is_temporary_copy() and provenance.git("ls-tree", "HEAD", "dvc.lock"):
            undo = "git checkout HEAD params.yaml dvc.lock && dvc checkout"  # DVC has removed the outputs
            click.echo(f"to undo it instead: {undo}", err=True)
        if isinstance(error, click.ClickException):
            sys.exit(error.exit_code)
        raise
    finally:
        provenance.loaded = {}


_loggers: Loggers | None = None  # of this process


@contextmanager
def _logging() -> Iterator[None]:
    """Log the main process's trainings to the loggers in CL_LOG, which end with the block."""
    global _loggers
    names = [name.strip() for name in os.environ.get("CL_LOG", "").split(",") if name.strip()]
    if not names or not is_main_process():
        yield
        return
    experiment = os.environ.get("DVC_EXP_NAME", "")
    try:
        with Loggers(names, locations.scratch() / "logs", provenance.params, experiment) as _loggers:
            yield
    finally:
        _loggers = None


def params() -> Params:
    """The validated parameters in params.yaml, which the results of this process will record."""
    params = load(provenance.PARAMS)
    provenance.loaded = read(provenance.PARAMS)
    return params


def choose(name: str, known: dict[str, Any], group: str) -> Any:
    """The entry `name` of a group in params.yaml."""
    if name not in known:
        remedy = f"choose one of {', '.join(known)}" if known else "the group is empty"
        raise ValueError(f"{group} in params.yaml does not contain {name!r}; {remedy}")
    return known[name]


on_all_devices = functools.partial(launch.on_all_devices, check=params)


def progress(title: str, baseline: str | None = None) -> Progress:
    """Progress of the main process, perhaps on a baseline, on the terminal and with the loggers in CL_LOG."""
    return command.progress(title if baseline is None else f"{baseline} {title}", _loggers)


def gpus() -> int:
    """The number of GPUs on which this machine will train."""
    return machine.gpus()


def find_machine(params: Params) -> Machine:
    """The device and precision that params.yaml chooses."""
    return machine.find(params.precision, deterministic=params.deterministic)


@dataclass
class Results:
    """The results of a stage: numbers, notes for the provenance, and files in `folder`.

    baseline: the baseline that they belong to, if any; it goes through several entries of params.yaml.
    metrics: numbers of the stage itself, by name.
    measurements: numbers of evaluations, transfers and analyses.
    about: what each evaluation, transfer and analysis measures, by its name in params.yaml.
    """

    folder: Path
    baseline: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def over_seeds(self, entry: str, measure: Callable[[int, Path], Numbers], seeds: list[int]) -> Runs:
        """The numbers of an entry, `measure(seed, folder)`, for each seed; several have a folder each."""
        folder, runs = self.folder / entry if self.baseline else self.folder, []
        for seed in seeds:
            out = folder / f"seed-{seed}" if len(seeds) > 1 else folder
            out.mkdir(parents=True, exist_ok=True)
            runs.append(measure(seed, out))
        return runs

    def add(self, entry: str, about: str, measured: list[Measurement], progress: Progress) -> None:
        """Add an entry's numbers, and print them on one line."""
        progress.say(", ".join(f"{name} {value:.4g}" for name, value in flat(measured).items()) or "done")
        self.about[entry] = about
        self.measurements += [number._replace(baseline=self.baseline) for number in measured]


@contextmanager
def results(
    stage: str, name: str | None = None, *, root: str | None = None, folder: bool = True
) -> Iterator[Results]:
    """Write `results/<stage>[/<name>].json`, its provenance and a folder of files; on failure, nothing.

    The JSON file contains the numbers by DVC's names, the provenance the measurements behind them.
    Only the main process writes. `root` replaces `results/<stage>`; DVC does not track it.
    """
    baseline = name if stage == "baseline" else None
    if not is_main_process():
        with tempfile.TemporaryDirectory() as dropped:
            yield Results(Path(dropped), baseline)
        return
    target = Path(root or RESULTS / stage) / name if name else RESULTS / stage
    unfinished = partial(target)
    shutil.rmtree(unfinished, ignore_errors=True)
    produced = Results(unfinished / "files", baseline)
    try:
        machine.gpus()  # raises here, not when the work is done and the hardware is recorded
        produced.folder.mkdir(parents=True)
        before = USAGE.now()
        yield produced
        used = USAGE.since(before)
        notes = produced.notes
        if name:
            measured = [each._asdict() for each in produced.measurements]
            notes |= {"about": produced.about, "measurements": measured}
        metrics = {key: rounded(float(value)) for key, value in produced.metrics.items()}
        metrics |= flat(produced.measurements)
        if wrong := [key for key, value in metrics.items() if not math.isfinite(value)]:
            raise FloatingPointError(f"{wrong[0]} is {metrics[wrong[0]]}, so no result is written")
        written = {"json": metrics, "provenance.json": {**provenance.record(stage, name, used), **notes}}
        for suffix, values in written.items():
            (unfinished / suffix).write_text(json.dumps(values, indent=1, allow_nan=False) + "\n")
        if root is None:
            provenance.check_unchanged(stage, name)
        for suffix in written:
            os.replace(unfinished / suffix, f"{target}.{suffix}")
        if folder:
            shutil.rmtree(target, ignore_errors=True)
            os.replace(produced.folder, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def partial(path: Path) -> Path:
    """The place of an output that is not complete yet."""
    return path.with_name(f"{path.name}.partial")


@contextmanager
def published(path: Path, *, resumable: bool = False) -> Iterator[Path]:
    """A folder to write to, renamed to `path` on success; if `resumable`, the next run continues in it."""
    unfinished, old = partial(path), path.with_name(f"{path.name}.old.partial")
    if not resumable:
        shutil.rmtree(unfinished, ignore_errors=True)
    try:
        yield unfinished
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            os.replace(path, old)
        os.replace(unfinished, path)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, KeyboardInterrupt):
        if resumable and unfinished.exists():
            click.echo(f"finished work is kept in {unfinished}: run again to continue from there", err=True)
        raise
    finally:
        if not resumable:
            shutil.rmtree(unfinished, ignore_errors=True)
