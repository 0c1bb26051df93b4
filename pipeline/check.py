"""check: refuses wrong parameters before DVC removes the outputs of the stages that they would run again."""

from pathlib import Path

import click

from pipeline.support import command, locations

CHECKED = Path("data/checked.txt")


@click.command()
@command.entry_point
def main() -> None:
    """Check params.yaml, and whether the raw data is there if `prepare` has to read it."""
    if not CHECKED.exists():  # DVC removes it, by hand it may be a link into the cache
        CHECKED.parent.mkdir(exist_ok=True)
        CHECKED.write_text("params.yaml passed pipeline.check.\n")  # even if the check fails
    dataset = command.params().dataset
    try:
        dataset.check_present(locations.raw())
    except ValueError:
        if _shards_must_be_prepared():
            raise


def _shards_must_be_prepared() -> bool:
    """Whether DVC would run `prepare`: its inputs have changed, and the run cache has no such run."""
    from dvc.repo import Repo

    with Repo() as repo:
        stage, cache = repo.stage.load_one(name="prepare"), repo.stage_cache
        if not any(dependency.status() for dependency in stage.deps):
            return False
        stage.save_deps()
        earlier = cache._load(stage)
        return not (earlier and cache._create_stage(earlier, wdir=stage.wdir).outs_cached())


if __name__ == "__main__":
    main()
