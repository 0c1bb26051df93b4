"""What the entry points share: parameters, the machine, results with their provenance, and errors as sentences."""

import errno
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import click

from cl.stop import StoppedError

if TYPE_CHECKING:
    from cl.cache import Cache
    from cl.config import Params
    from cl.progress import Progress
    from cl.shards import Reader

SHARDS, SCENES, RESULTS = Path("data/shards"), Path("data/scenes"), Path("results")
BACKBONE, METHOD = Path("models/backbone.safetensors"), Path("models/method.safetensors")
RECORDED = (":!dvc.lock", ":!params.yaml")  # changes of these are no change of code, and are on record anyway
VERSIONS = ("torch", "torchvision", "numpy", "pillow", "webdataset", "dvc", "pycocotools")


def entry_point(function: Callable[..., None]) -> Callable[..., None]:
    """Users' mistakes and full disks end in one sentence and exit code 1, signals in theirs; bugs keep their traceback."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except (ValueError, FloatingPointError) as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EIO, errno.ESTALE):
                raise
            where = f" ({error.filename})" if error.filename else ""
            raise click.ClickException(f"{error.strerror}{where}: nothing half-written is left") from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(130)
        except StoppedError as error:
            note_stop()
            if first():
                click.echo(str(error), err=True)
            sys.exit(error.exit_code)

    return wrapped


def note_stop() -> None:
    """Leave the file that CL_STOPPED names: this run was asked to stop, and wants to be started again."""
    if first() and (marker := os.environ.get("CL_STOPPED")):
        Path(marker).touch()


def params() -> "Params":
    """The checked parameters of the workspace."""
    from cl.config import load

    return load(Path("params.yaml"))


def choose(name: str, known: dict[str, Any], group: str) -> Any:
    """The entry of `params.yaml` that a stage was called for."""
    if name not in known:
        raise ValueError(f"{group} has no {name!r} in params.yaml; choose one of {', '.join(known) or 'nothing: it is empty'}")
    return known[name]


def raw() -> Path:
    """Where the raw data sets lie."""
    return Path(os.environ.get("CL_RAW", "data/raw"))


def reader(split: str) -> "Reader":
    """The images of one split: those of data/shards, or of the folder or URL that CL_SHARDS names."""
    from cl.shards import Reader

    manifest()
    return Reader(_place(), split, _cache())


def manifest() -> bytes:
    """The manifest of the shards that `reader` reads."""
    from cl.shards import folder_at

    found, own = folder_at(_place(), _cache()).manifest, SHARDS / "manifest.json"
    if own.is_file() and own.read_bytes() != found:
        raise ValueError(
            f"CL_SHARDS={_place()} holds other shards than {SHARDS}, which DVC takes for the data of this run: "
            f"unset CL_SHARDS, or remove {SHARDS}"
        )
    return found


def _place() -> str:
    return os.environ.get("CL_SHARDS") or str(SHARDS)


def _cache() -> "Cache":
    from cl.cache import Cache

    gigabytes = os.environ.get("CL_CACHE_GB", "20")
    if not re.fullmatch(r"\d*\.?\d+", gigabytes):
        raise ValueError(f"CL_CACHE_GB={gigabytes}: give a number of gigabytes, such as 20")
    return Cache(Path(os.environ.get("CL_CACHE", "scratch/cache")), round(float(gigabytes) * 1e9))


def first() -> bool:
    """Whether this is the process that writes and speaks, of those that share a stage."""
    return os.environ.get("RANK", "0") == "0"


def progress(title: str) -> "Progress":
    """Progress under a title, of the first process alone; also for TensorBoard, in the folder that CL_TENSORBOARD names."""
    from rich.console import Console

    from cl.progress import Progress

    board, folder = None, os.environ.get("CL_TENSORBOARD")
    if folder and first():
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError("CL_TENSORBOARD is set, but TensorBoard is not there: pip install tensorboard") from None
        board = SummaryWriter(folder)
    return Progress(title, Console(stderr=True, quiet=not first()), board)


def declared(stage: str, name: str | None = None) -> tuple[list[Path], dict[str, Any]]:
    """The dependencies and parameters that `dvc.yaml` declares for a stage, with the values of `params.yaml` filled in."""
    from cl.config import read

    values, stages = read(Path("params.yaml")), read(Path("dvc.yaml"))["stages"]
    declaration = stages[stage].get("do", stages[stage])
    extra = {"key": name, "item": values[stages[stage]["foreach"][2:-1]][name]} if name else {}

    def fill(text: str) -> str:
        return re.sub(r"\$\{([\w.]+)\}", lambda match: str(_at(values | extra, match[1])), text)

    names = [fill(parameter) for parameter in declaration["params"]]
    return [Path(fill(path)) for path in declaration["deps"]], {parameter: _at(values, parameter) for parameter in names}


def _at(values: dict[str, Any], path: str) -> Any:
    return functools.reduce(lambda value, key: value[key], path.split("."), values)


def identity(stage: str, name: str | None = None, instead: str = "") -> str:
    """A hash of all that a stage's result depends on: declared parameters, code, and data through its manifest.

    Args:
        instead: a hash of what takes the place of the pretrained models.
    """
    files, values = declared(stage, name)
    sha = hashlib.sha256(json.dumps(values, sort_keys=True).encode() + instead.encode())
    for path in [path for path in files if not (instead and path in (BACKBONE, METHOD))]:
        if path == SHARDS:
            sha.update(f"\0{path / 'manifest.json'}\0".encode() + manifest())
            continue
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if not file.is_file():
                raise ValueError(f"no {file}: run `dvc repro` first, which makes what this stage needs")
            sha.update(f"\0{file}\0".encode() + file.read_bytes())
    return sha.hexdigest()[:16]


def scratch(stage: str, name: str | None = None, data: str = "", instead: str = "") -> Path:
    """Where a stage keeps its checkpoints: another experiment, other data or other code has another folder.

    Args:
        data: a hash of data that no manifest describes.
        instead: as `identity` takes it.
    """
    root = os.environ.get("CL_SCRATCH")
    if first() and ".dvc/tmp/exps" in Path.cwd().as_posix() and not (root and Path(root).is_absolute()):
        click.echo(f"{stage}: this copy of the project is temporary; set CL_SCRATCH to an absolute folder to make it resumable")
    return Path(root or "scratch") / f"{identity(stage, name, instead)}{data[:16]}"


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
def results(stage: str, name: str | None = None, *, root: Path | None = None, folder: bool = True) -> Iterator[Results]:
    """`results/<stage>[/<name>].json`, its provenance beside it and a folder of files, all written at the end or not at all.

    What other processes than the first hand over is dropped. `root`: another folder for `<name>.json` and the rest.
    """
    if not first():
        with tempfile.TemporaryDirectory() as dropped:
            yield Results(Path(dropped))
        return
    target = (root or RESULTS / stage) / name if name else RESULTS / stage
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    began = time.monotonic()
    try:
        handed = Results(partial / "files")
        handed.folder.mkdir()
        yield handed
        rounded = {key: round(float(value), 4) for key, value in handed.metrics.items()}
        _write_json(partial / "metrics.json", rounded)
        _write_json(partial / "provenance.json", {**provenance(stage, name, time.monotonic() - began), **handed.notes})
        os.replace(partial / "metrics.json", f"{target}.json")
        os.replace(partial / "provenance.json", f"{target}.provenance.json")
        if folder:
            shutil.rmtree(target, ignore_errors=True)
            os.replace(handed.folder, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def repeated(run: Callable[[int, Path], dict[str, float]], seeds: list[int] | None, usual: int, out: Path) -> dict[str, float]:
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
        metrics |= {key: fmean(values), f"{key}_sd": stdev(values)}
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


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def provenance(stage: str, name: str | None, seconds: float) -> dict[str, Any]:
    """Where a result comes from: parameters, data, code, versions, hardware, time."""
    files, values = declared(stage, name)
    data = (SHARDS / "manifest.json").read_bytes() if stage == "prepare" else manifest() if SHARDS in files else None
    return {
        "stage": stage + (f"@{name}" if name else ""),
        "parameters": values,
        "parameters_sha256": hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest(),
        "data_manifest_sha256": data and hashlib.sha256(data).hexdigest(),
        "commit": _git("rev-parse", "HEAD") or None,
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", *RECORDED)),
        "versions": {"python": platform.python_version(), **{v: importlib.metadata.version(v) for v in VERSIONS}},
        "hardware": _hardware(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }


def manifest_hash() -> str:
    """The hash that stands for all images that `reader` reads."""
    return hashlib.sha256(manifest()).hexdigest()


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _hardware() -> dict[str, Any]:
    import torch

    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.processor()
    )
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    return {
        "cpu": cpu,
        "processes": processes,
        "threads": torch.get_num_threads(),
        "gpus": gpus,
        "system": platform.platform(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
