"""Outputs of stages: published once complete; which stage makes a missing one; how to get one back."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from pipeline.support import locations, provenance


def require_inputs(stage: str, name: str | None = None, *, models: bool = True) -> None:
    """Check that a stage finds the outputs of other stages that it reads; see `require`.

    Args:
        models: whether it reads the pretrained models.
    """
    unread = [] if models else [locations.BACKBONE, locations.METHOD]
    require(*(path for path in provenance.declared(stage, name)[0] if path not in unread))


def require(*paths: Path) -> None:
    """Check that these outputs exist.

    Raises:
        ValueError: one is missing; the message says how to get it.
    """
    for path in paths:
        if not path.exists() and (maker := _maker(path)):
            raise ValueError(f"{path} is missing{_how_to_get(path, maker)}")


def _maker(path: Path) -> str | None:
    """The stage that has this output."""
    from cl.config import read

    for stage, declaration in read(Path("dvc.yaml"))["stages"].items():
        if path.as_posix() in declaration.get("outs", []):
            return str(stage)
    return None


def _how_to_get(path: Path, maker: str) -> str:
    from dvc.repo import Repo

    from cl.config import parse

    lock = Path("dvc.lock")
    stages: dict[str, Any] = parse(lock.read_text(), str(lock))["stages"] if lock.is_file() else {}
    hashes = {output["path"]: output["md5"] for output in stages.get(maker, {}).get("outs", [])}
    if (md5 := hashes.get(path.as_posix())) and Path(Repo().cache.local.oid_to_path(md5)).is_file():
        return f", but DVC's cache has it: run `dvc checkout {path}`"
    return f": run `dvc repro {maker}`"


def way_back() -> str | None:
    """How to get back what DVC removed before it ran this stage, if an earlier run is committed."""
    stage = os.environ.get("DVC_STAGE")
    if not stage or locations.is_temporary_copy():
        return None
    committed = subprocess.run(["git", "show", "HEAD:./dvc.lock"], capture_output=True, text=True).stdout
    if f"\n  {stage}:\n" not in committed:
        return None
    return f"{stage}: `git checkout params.yaml dvc.lock && dvc checkout` brings back the committed outputs"


def partial(path: Path) -> Path:
    """Where an output is written before it gets its name."""
    return path.with_name(f"{path.name}.partial")


@contextmanager
def published(path: Path, *, resumable: bool = False) -> Iterator[Path]:
    """A folder to write to, which gets its name `path` only on success.

    Args:
        resumable: whether the next run continues from what an interrupted run has finished.
    """
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
