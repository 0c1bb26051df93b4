"""Outputs of stages: publish them once complete, and say how to get a missing one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from pipeline.support import locations, provenance


def require_inputs(stage: str, name: str | None = None, *, models: bool = True) -> None:
    """Check that the outputs that a stage reads exist; those of pretraining only with `models`."""
    unread = [] if models else [locations.BACKBONE, locations.METHOD]
    require(*(path for path in provenance.declared(stage, name)[0] if path not in unread))


def require(*paths: Path) -> None:
    """Raises ValueError if one of these outputs is missing; the message says how to get it."""
    for path in paths:
        if not path.exists():
            raise ValueError(
                f"{path} is missing: run `dvc repro`, or `dvc checkout {path}` if it was made before"
            )


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
