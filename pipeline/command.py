"""What the entry points share: parameters, the machine, results with their provenance, and errors as sentences."""

import errno
import functools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import click

from cl.console.stop import StoppedError, terminate_when_exists
from pipeline import energy, provenance

if TYPE_CHECKING:
    from cl.config import Params
    from cl.console.progress import Progress, Usage

RESULTS = Path("results")
SETTINGS = {
    "base_lr",
    "weight_decay",
    "labels",
}  # among metrics; of several seeds told where they are the same


def entry_point(function: Callable[..., None]) -> Callable[..., None]:
    """Users' mistakes and full disks end in one sentence and exit code 1, signals in theirs; bugs keep their traceback.

    A file that CL_STOP names, as `docker/entrypoint.sh` does, stops them as SIGTERM does.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        if stop := os.environ.get("CL_STOP"):
            terminate_when_exists(Path(stop))
        try:
            function(*args, **kwargs)
        except (ValueError, FloatingPointError) as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.errno not in (
                errno.ENOSPC,
                errno.EDQUOT,
                errno.EFBIG,
                errno.EACCES,
                errno.EROFS,
                errno.EIO,
                errno.ESTALE,
            ):
                raise
            where = f" ({error.filename})" if error.filename else ""
            raise click.ClickException(f"{error.strerror}{where}: nothing half-written is left") from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(130)
        except StoppedError as error:
            if is_main_process():
                click.echo(str(error), err=True)
            sys.exit(error.exit_code)

    return wrapped


def params() -> "Params":
    """The checked parameters of the workspace."""
    from cl.config import load

    return load(Path("params.yaml"))


def choose(name: str, known: dict[str, Any], group: str) -> Any:
    """The entry of `params.yaml` that a stage was called for."""
    if name not in known:
        raise ValueError(
            f"{group} has no {name!r} in params.yaml; choose one of {', '.join(known) or 'nothing: it is empty'}"
        )
    return known[name]


def is_main_process() -> bool:
    """Whether this is the process that writes and speaks, of those that share a stage."""
    return os.environ.get("RANK", "0") == "0"


def progress(title: str) -> "Progress":
    """Progress under a title, of the first process alone; also for TensorBoard, in the folder that CL_TENSORBOARD names."""
    from rich.console import Console

    from cl.console.progress import Progress

    board, folder = None, os.environ.get("CL_TENSORBOARD")
    if folder and is_main_process():
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(
                "CL_TENSORBOARD is set, but TensorBoard is not there: pip install tensorboard"
            ) from None
        board = SummaryWriter(folder)
    return Progress(title, Console(stderr=True, quiet=not is_main_process()), board, usage())


@functools.cache
def usage() -> "Usage":
    """What this process uses; all its trainings count there, however many a stage has."""
    from cl.console.progress import Usage

    return Usage()


def scratch(stage: str, name: str | None = None, data: str = "", instead: str = "") -> Path:
    """Where a stage keeps its checkpoints: another experiment, other data or other code has another folder.

    Args:
        data: a hash of data that no manifest describes.
        instead: as `provenance.identity` takes it.
    """
    root = os.environ.get("CL_SCRATCH")
    if (
        is_main_process()
        and ".dvc/tmp/exps" in Path.cwd().as_posix()
        and not (root and Path(root).is_absolute())
    ):
        click.echo(
            f"{stage}: this copy of the project is temporary; set CL_SCRATCH to an absolute folder to make it resumable"
        )
    return Path(root or "scratch") / f"{provenance.identity(stage, name, instead)}{data[:16]}"


def checkpoint_seconds() -> float:
    """How often a run saves itself at the least."""
    return float(os.environ.get("CL_CHECKPOINT_SECONDS", "60"))


@dataclass
class Results:
    """What a stage hands over: numbers by name, and files in `folder`."""

    folder: Path
    metrics: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


@contextmanager
def results(
    stage: str, name: str | None = None, *, root: str | None = None, folder: bool = True
) -> Iterator[Results]:
    """`results/<stage>[/<name>].json`, its provenance beside it and a folder of files, all written at the end or not at all.

    What other processes than the first hand over is dropped, and not counted: energy is that of the first one's machine.
    `root`: another folder for `<name>.json` and the rest.
    """
    if not is_main_process():
        with tempfile.TemporaryDirectory() as dropped:
            yield Results(Path(dropped))
        return
    target = Path(root or RESULTS / stage) / name if name else RESULTS / stage
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        handed = Results(partial / "files")
        handed.folder.mkdir()
        with _measured() as used:
            yield handed
        rounded = {key: _rounded(float(value)) for key, value in handed.metrics.items()}
        _write_json(partial / "metrics.json", rounded)
        _write_json(partial / "provenance.json", {**provenance.record(stage, name, used), **handed.notes})
        os.replace(partial / "metrics.json", f"{target}.json")
        os.replace(partial / "provenance.json", f"{target}.provenance.json")
        if folder:
            shutil.rmtree(target, ignore_errors=True)
            os.replace(handed.folder, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _measured() -> Iterator[dict[str, float]]:
    """What is used inside, of trainings that go on from a checkpoint also before it; in a dictionary filled at the end."""
    total, used = usage(), dict[str, float]()
    with energy.counters() as total.counters:
        then, known = total.now(), len(total.earlier)
        yield used
        used |= total.since(then, total.earlier[known:])


def repeated(
    run: Callable[[int, Path], dict[str, float]], seeds: list[int] | None, usual: int, out: Path
) -> dict[str, float]:
    """What `run` measures with the usual seed; or with each of the seeds: means, `<metric>_sd` and their number `n`.

    `run` takes a seed and a folder: each of several seeds has one of its own in `out`.
    """
    if seeds is None or len(seeds) == 1:
        return run(seeds[0] if seeds else usual, out)
    measured = []
    for seed in seeds:
        folder = out / f"seed-{seed}"
        folder.mkdir()
        measured.append(run(seed, folder))
    metrics: dict[str, float] = {}
    for key in measured[0]:
        values = [metric[key] for metric in measured]
        if key not in SETTINGS:
            metrics |= {key: fmean(values), f"{key}_sd": stdev(values)}
        elif len(set(values)) == 1:
            metrics[key] = values[0]
    return {**metrics, "n": float(len(seeds))}


@contextmanager
def published(path: Path, *, resumable: bool = False) -> Iterator[Path]:
    """A folder that appears under its name when all went well, and not at all otherwise.

    Args:
        resumable: what was done when the run was cut short is kept beside it, for the next run to go on from.
    """
    partial, old = (path.with_name(f"{path.name}.{suffix}") for suffix in ("partial", "old.partial"))
    if not resumable:
        shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            os.replace(path, old)
        os.replace(partial, path)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, KeyboardInterrupt):
        if resumable and partial.exists():
            click.echo(f"what is finished is kept in {partial}: run again to go on from there", err=True)
        raise
    finally:
        if not resumable:
            shutil.rmtree(partial, ignore_errors=True)


def _rounded(value: float) -> float:
    """Four decimals, or of small numbers four digits."""
    return round(value, 4) if abs(value) >= 0.1 else float(f"{value:.4g}")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
