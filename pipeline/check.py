"""check: refuse wrong parameters before DVC removes the outputs of the stages that would run again."""

import os
from pathlib import Path

import click
from dvc.repo import Repo

from cl.config.rules import check_data
from cl.console import launch
from cl.images import folders
from cl.runtime.stores import is_url
from pipeline.support import command, locations

CHECKED = Path("data/checked.txt")  # `prepare` runs again if it changes
PASSED = "params.yaml passed pipeline.check.\n"


@click.command()
@command.entry_point
def main() -> None:
    """Check params.yaml, and whether the raw data is there if `prepare` has to read it.

    If the shards are there, check also that they have enough images and labels. Summarise a folder of your
    own images, so that `prepare` runs again if the folder changes.
    """
    _write(PASSED)  # even if the check fails
    params, raw = command.params(), locations.raw()
    dataset = params.dataset
    folder = dataset.watched(raw)
    try:
        dataset.check_present(raw)
        if folder and not is_url(folder):
            table = locations.table_sha256(dataset)
            _write(f"{PASSED}{dataset.kind}: {folders.summary(folder)}, table {table}\n")
    except ValueError:
        _write(_of_last_run())
        if _inputs_of_prepare_changed():
            raise
    if locations.SHARDS.is_dir() and not _inputs_of_prepare_changed():
        processes = 1 if "CL_LAUNCH" in os.environ else launch.processes()
        check_data(*locations.data(params), processes)


def _write(text: str) -> None:
    """Replace the output. A run by hand keeps an existing one, which may be a link into DVC's cache."""
    if "DVC_STAGE" in os.environ or not CHECKED.exists():
        CHECKED.parent.mkdir(exist_ok=True)
        CHECKED.write_text(text)


def _of_last_run() -> str:
    """The output of the last run, for a machine that has only the shards."""
    with Repo() as repo:
        (output,) = repo.stage.load_one(name="check").outs
        cached = output.hash_info.value and Path(repo.cache.local.oid_to_path(output.hash_info.value))
        return cached.read_text() if cached and cached.is_file() else PASSED


def _inputs_of_prepare_changed() -> bool:
    """Whether DVC would run `prepare`."""
    with Repo() as repo:
        return any(dependency.status() for dependency in repo.stage.load_one(name="prepare").deps)


if __name__ == "__main__":
    main()
