"""scratch: list the checkpoints of interrupted runs in CL_SCRATCH, and remove those of finished runs."""

import contextlib
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import click

from cl.console.wording import memory
from cl.runtime import files
from pipeline.support import command, locations
from pipeline.support.collect import collect

LOCKS = "[0-9a-f]" * 16 + f"*/{files.LOCK}"  # one in each run's folder; see `pipeline.support.runs`


@click.command()
@click.option("--remove", is_flag=True, help="Remove the checkpoints of finished runs.")
@command.entry_point
def main(remove: bool) -> None:
    """List the checkpoints in CL_SCRATCH (default scratch/), newest first.

    A run is finished if this folder, a DVC experiment or a branch has results newer than its checkpoints.
    """
    folders = {lock.parent: _usage(lock.parent) for lock in locations.scratch().glob(LOCKS)}
    if not folders:
        click.echo(f"no checkpoints in {locations.scratch()}")
        return
    finished = _finished()
    for folder, (written, used) in sorted(folders.items(), key=lambda item: item[1], reverse=True):
        last_change = datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds")
        is_finished = last_change <= finished.get(folder.name, "")
        state = _state(folder, is_finished=is_finished, remove=remove)
        click.echo(f"{folder}  {datetime.fromtimestamp(written):%Y-%m-%d %H:%M}  {memory(used):>8}  {state}")


def _usage(folder: Path) -> tuple[float, int]:
    """The time of the folder's last change, and its bytes. A run may remove files meanwhile."""
    written, used = 0.0, 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = Path(parent, name).stat()
                written, used = max(written, status.st_mtime), used + status.st_size
    return written, used


def _state(folder: Path, *, is_finished: bool, remove: bool) -> str:
    """The state of a folder's run; removes the folder of a finished run if `remove`."""
    try:
        with files.exclusive(folder, folder):  # no run may begin until it is removed
            if is_finished and remove:
                shutil.rmtree(folder, ignore_errors=True)  # NFS keeps the open lock for a moment
                return "finished, removed"
    except ValueError:
        return "running"
    except PermissionError:
        return "another user's"
    return "finished" if is_finished else "unfinished"


def _finished() -> dict[str, str]:
    """When each run finished last whose results exist, by its key, which is the name of its folder."""
    records = [record for experiment in collect(lambda _: None) for record in experiment.provenance.values()]
    times = sorted((record["finished"], record["run_key"]) for record in records if "run_key" in record)
    return {key: finished for finished, key in times}


if __name__ == "__main__":
    main()
