"""scratch: list what interrupted runs left in CL_SCRATCH, and remove what belongs to finished ones."""

import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import click

from cl.console.wording import memory
from cl.runtime import files
from pipeline import command

DIGITS = 16  # of a run's identity, with which the name of its folder begins


@click.command()
@click.option("--remove", is_flag=True, help="Remove the checkpoints of finished runs.")
@command.entry_point
def main(remove: bool) -> None:
    """List the checkpoints in CL_SCRATCH (default scratch/), newest first.

    A run is finished if its results are in this folder, or in an experiment or branch that DVC knows.
    """
    folders = {folder: _last_write(folder) for folder in command.scratch().glob("[0-9a-f]" * DIGITS + "*")}
    if not folders:
        click.echo(f"no checkpoints in {command.scratch()}")
        return
    finished = set(_identities())
    for folder, written in sorted(folders.items(), key=lambda item: -item[1]):
        state = "running" if _is_in_use(folder) else "unfinished"
        if state != "running" and folder.name[:DIGITS] in finished:
            state = "finished, removed" if remove else "finished"
        used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        click.echo(f"{folder}  {datetime.fromtimestamp(written):%Y-%m-%d %H:%M}  {memory(used):>8}  {state}")
        if state == "finished, removed":
            shutil.rmtree(folder)


def _last_write(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))


def _is_in_use(folder: Path) -> bool:
    try:
        with files.exclusive(folder, folder):
            return False
    except ValueError:
        return True


def _identities() -> Iterator[str]:
    """The identities of the runs whose results exist."""
    from pipeline.collect import collect

    for experiment in collect(lambda _: None):
        for provenance in experiment.provenance.values():
            if identity := provenance.get("identity"):
                yield identity


if __name__ == "__main__":
    main()
