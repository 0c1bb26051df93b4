"""check: refuses wrong parameters before DVC removes the outputs of the stages that they would run again."""

from pathlib import Path

import click
from dvc.repo import Repo
from dvc.stage.cache import RunCacheNotFoundError
from dvc_data.hashfile.hash_info import HashInfo

from pipeline.support import command, locations

CHECKED = Path("data/checked.txt")


@click.command()
@command.entry_point
def main() -> None:
    """Check params.yaml, and whether the raw data is there if `prepare` has to read it."""
    if not CHECKED.exists():  # DVC has removed it; in a run by hand it may be a link into the cache
        CHECKED.parent.mkdir(exist_ok=True)
        CHECKED.write_text("params.yaml passed pipeline.check.\n")  # even if the check fails
    dataset = command.params().dataset
    try:
        dataset.check_present(locations.raw())
    except ValueError:
        if _shards_must_be_prepared():
            raise


def _shards_must_be_prepared() -> bool:
    """Whether DVC would run `prepare`: its inputs have changed, and DVC's cache has no such run."""
    with Repo() as repo:
        stage = repo.stage.load_one(name="prepare")
        if not any(dependency.status() for dependency in stage.deps):
            return False
        stage.save_deps()
        for output in stage.outs:
            output.hash_info = HashInfo()  # look for a run with these inputs, not for the last run
        try:
            repo.stage_cache.restore(stage, dry=True)
        except RunCacheNotFoundError:
            return True
    return False


if __name__ == "__main__":
    main()
