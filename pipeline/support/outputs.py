"""Outputs of stages: published once complete; where a stage misses one, how to get it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        if not path.exists():
            raise ValueError(
                f"{path} is missing: run `dvc repro`, or `dvc checkout {path}` if it was made before"
            )


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
