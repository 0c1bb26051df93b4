"""The runs behind the rows of `benchmarks.gpu.table`: one per seed, in a folder that outlives the command."""

import csv
import hashlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock

from benchmarks.gpu import steps, table_page
from benchmarks.gpu.session import Session
from benchmarks.gpu.table_page import REHEARSAL, Result, Row
from benchmarks.sigterm import exits_on_sigterm
from benchmarks.workplace import link_project
from cl import config
from cl.runtime import machine
from cl.runtime.base_config import suggestion
from cl.runtime.cores import cores
from cl.runtime.files import exclusive
from cl.runtime.metric_info import Measurement
from pipeline.composition.compose import compose, write
from pipeline.support import provenance

GRACE, SHARE = 30.0, 0.2  # for the last checkpoint: seconds, but at most this share of the time
CUT = os.EX_TEMPFAIL
STAGES = ("prepare", "weights", "pretrain", "evaluate")
MADE_WITH = "made_with.txt"  # a line for each command that worked on the run: card, versions, commit
# Stages are forked from a process that has imported them but not started CUDA.
CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload([f"pipeline.{stage}" for stage in STAGES])


class Run(NamedTuple):
    """A row with one seed, in its folder below `state`; `end` is on the clock of `time.monotonic`."""

    name: str
    row: Row
    seed: int
    state: Path
    end: float

    @property
    def folder(self) -> Path:
        """A copy of the project: links to its code, with parameters, models and results of its own."""
        return self.state / f"{self.name}-{self.seed}"

    @property
    def overrides(self) -> list[str]:
        """What the run is composed of."""
        return [*self.row.overrides, f"seed={self.seed}"]


def measure(name: str, seeds: tuple[int, ...], end: float, state: Path, to: Path, commit: str | None) -> None:
    """Run the row's missing seeds, or these, until the time is over; the exit code is then `CUT`.

    Raises:
        ValueError: no row has this name, no GPU is visible, a stage fails, or a folder has another run.
    """
    known = table_page.known()
    if name not in known:
        raise ValueError(f"no row {name}{suggestion(name, list(known))}")
    if not machine.gpus() and name != REHEARSAL:
        raise ValueError(f"no GPU is visible, which this row needs; `{REHEARSAL}` tries the command on a CPU")
    left = end - time.monotonic()
    print(f"{_card()}, {cores()} cores, {left / 60:.1f} minutes, state in {state}", flush=True)
    finished = {result.seed for result in table_page.read(to) if result.row == name}
    for seed in seeds or range(known[name].seeds):
        run = Run(name, known[name], seed, state, end - min(GRACE, SHARE * left))
        if seed in finished:
            continue
        with exits_on_sigterm(), exclusive(run.folder, run.folder):
            found = _step(run, commit) if run.row.measure == "step" else _stages(run, commit)
        if found is None:
            print(f"{run.folder.name} is not finished; the same command continues it", flush=True)
            sys.exit(CUT)
        with FileLock(state / "results.lock"):
            table_page.add(to, found)
        print(f"{run.folder.name}: {run.row.measure} {found.value:.5g} -> {to / 'gpu_table.md'}", flush=True)


def _card() -> str:
    return torch.cuda.get_device_name() if machine.gpus() else "no GPU"


def _step(run: Run, commit: str | None) -> Result:
    """Steps with a batch in memory, augmented in each; seconds of one."""
    device = torch.device("cuda" if machine.gpus() else "cpu")
    session = Session(device, run.folder / "steps.jsonl", run.name)
    params = config.check(compose(run.overrides))
    case = steps.Case(run.name, tuple(run.overrides), in_loop=True)
    seconds, _, _ = steps.train_steps(session, params, case)
    rate = params.optim.batch_size / seconds
    made_with = _made_with(machine.find(params.precision, deterministic=False).precision, commit)
    return Result(run.name, run.seed, rate, None, seconds, rate, made_with)


def _stages(run: Run, commit: str | None) -> Result | None:
    """Prepare, train and evaluate; None if the time was over before."""
    composed = _set_up(run)
    with (run.folder / MADE_WITH).open("a") as file:
        precision = machine.find(composed["precision"], deterministic=False).precision
        file.write(f"{_made_with(precision, commit)}\n")
    data = run.state / f"data-{_hash(composed['dataset'])}"
    link, shards = run.folder / "data", data / "shards"
    link.unlink(missing_ok=True)
    data.mkdir(exist_ok=True)
    link.symlink_to(data)
    with FileLock(data.with_suffix(".lock")):  # runs that share the images wait
        if not shards.exists() and not _stage(run, "prepare"):
            return None
    evaluations = [] if run.row.measure == "images_per_second" else list(composed["evaluations"])
    for words in (["weights"], ["pretrain"], *(["evaluate", name] for name in evaluations)):
        done = (run.folder / "results" / "/".join(words)).with_suffix(".json").exists()
        if not done and not _stage(run, *words):
            return None
    return _result(run)


def _set_up(run: Run) -> dict[str, Any]:
    """Prepare the run's folder, and return its parameters."""
    composed, file = compose(run.overrides), run.folder / "params.yaml"
    if file.exists() and config.read(file) != composed:
        raise ValueError(f"{run.folder} has a run with other parameters: remove it to start again")
    link_project(run.folder)
    for name in ("models", "results"):
        (run.folder / name).mkdir(exist_ok=True)
    write(file, run.overrides)
    return composed


def _stage(run: Run, *words: str) -> bool:
    """Run a stage of the pipeline; false if the time was over before it had finished.

    Raises:
        ValueError: it failed.
    """
    stop = run.folder / "stop"
    stop.unlink(missing_ok=True)
    scratch = str(run.folder / "scratch")
    variables = {"CL_SCRATCH": scratch, "CL_STOP": str(stop), "CL_LOG": "", "CL_PROCESSES": "1"}
    environment = {"CL_CHECKPOINT_SECONDS": str(GRACE), **os.environ, **variables}
    process = CONTEXT.Process(target=_enter, args=(run.folder, words, environment))
    process.start()
    try:
        process.join(max(0.0, run.end - time.monotonic()))
        if process.is_alive():
            return False
    finally:
        stop.touch()
        process.join(GRACE)
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)  # with its data workers
        process.join()
    if process.exitcode:
        raise ValueError(f"pipeline.{' '.join(words)} failed, as said above; the same command tries again")
    return True


def _enter(folder: Path, words: tuple[str, ...], environment: dict[str, str]) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.update(environment)
    import_module(f"pipeline.{words[0]}").main(words[1:])


def _result(run: Run) -> Result:
    """Of finished stages, and what all commands that ran them were made with."""
    results = run.folder / "results"
    made = json.loads((results / "pretrain.provenance.json").read_text())
    with (results / "pretrain/epochs.csv").open() as file:
        rate = float(list(csv.DictReader(file))[-1]["images_per_second"])
    value, images = (rate, None) if run.row.measure == "images_per_second" else (None, None)
    for path in results.glob("evaluate/*.provenance.json"):
        for number in json.loads(path.read_text())["measurements"]:
            if (each := Measurement(**number)).name == run.row.measure:
                value, images = each.mean, each.images
    if value is None:
        raise ValueError(f"{run.folder} has no {run.row.measure}")
    made_with = "; ".join(dict.fromkeys((run.folder / MADE_WITH).read_text().splitlines()))
    return Result(run.name, run.seed, value, images, made["seconds"], rate, made_with)


def _made_with(precision: str, commit: str | None) -> str:
    versions, (found, changed) = provenance.versions(), provenance.code()
    names = ", ".join(f"{name} {versions[name]}" for name in ("driver", "cuda", "torch") if name in versions)
    commit = commit or f"{(found or 'unknown')[:7]}{' with changes' if changed else ''}"
    return f"{_card()}, {names}, {precision}, {commit}, {datetime.now(UTC):%Y-%m-%d}"


def _hash(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
