"""Checkpoints of a stage in CL_SCRATCH, from which a run that was stopped or killed continues."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cl.runtime import files
from pipeline.support import command, locations, provenance

if TYPE_CHECKING:
    from cl.training.checkpoints import Checkpoints


@contextmanager
def checkpoints(
    stage: str, name: str | None = None, data: str = "", instead: str = ""
) -> "Iterator[Callable[..., Checkpoints]]":
    """Checkpoints in a folder of which this run is the only user; they are removed on success.

    Args:
        data: a hash of data that no manifest describes.
        instead: see `provenance.identity`.

    Yields:
        `of(*part)`: the checkpoints of a part of the stage.

    Raises:
        ValueError: another run uses the folder.
    """
    from cl.training.checkpoints import Checkpoints

    folder = _folder(stage, name, data, instead)
    seconds = float(os.environ.get("CL_CHECKPOINT_SECONDS", "60"))
    with _exclusive(folder) if command.is_main_process() else nullcontext():
        yield lambda *part: Checkpoints(folder / "-".join(part), seconds)


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Keep other processes from the folder; remove it on success, and if nothing has been written into it."""
    with files.exclusive(folder, folder):
        try:
            yield
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            if [path.name for path in folder.glob("*")] == [files.LOCK]:
                shutil.rmtree(folder, ignore_errors=True)


def _folder(stage: str, name: str | None, data: str, instead: str) -> Path:
    """The folder of a stage's checkpoints, which depends on the experiment, the data and the code."""
    root = command.scratch()
    if locations.is_temporary_copy() and not root.is_absolute() and command.is_main_process():
        click.echo(
            f"{stage}: this copy of the project is temporary; "
            "set CL_SCRATCH to an absolute folder to make it resumable"
        )
    return root / folder_name(stage, provenance.identity(stage, name, instead), data)


def folder_name(stage: str, identity: str, data: str = "") -> str:
    """The name of the folder of a run; `data` as in `checkpoints`.

    Experiments with equal baselines may train them at the same time: each copy of the project for itself.
    """
    if stage == "baseline":
        data = hashlib.sha256(bytes(Path.cwd())).hexdigest()
    return f"{identity}{data[:16]}"
