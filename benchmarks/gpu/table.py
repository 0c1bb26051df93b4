"""One command for whoever has a GPU for ten minutes at a time: `python -m benchmarks.gpu.table NAME`.

It prepares, trains and evaluates the row NAME of table.yaml, and writes it into docs/results/gpu_table.md.
Before its minutes are over, it saves a checkpoint and stops; the same command continues, also on another day
or another machine that has the folder of `--state`.
"""

import os
import time
import tomllib
from importlib import metadata
from pathlib import Path

import click
from packaging.requirements import Requirement

STATE, RESULTS = Path("scratch/gpu_table"), Path("docs/results")


@click.command()
@click.argument("name")
@click.option("--seed", "seeds", type=int, multiple=True, help="By default those that the row lacks.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True)
@click.option("--data", type=click.Path(path_type=Path), help="The raw data; by default CL_RAW.")
@click.option("--state", type=click.Path(path_type=Path), default=STATE, show_default=True)
@click.option("--to", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
@click.option("--commit", help="Where the project's folder is not a repository.")
def main(
    name: str,
    seeds: tuple[int, ...],
    minutes: float,
    data: Path | None,
    state: Path,
    to: Path,
    commit: str | None,
) -> None:
    """Measure the row NAME of table.yaml in at most some minutes; exit with 75 if it is not finished.

    To share a card, start several commands at once, with other names or seeds.
    """
    end = time.monotonic() + 60 * minutes
    if lacking := missing():
        raise click.ClickException(f"install what is missing here: {' '.join(lacking)}")
    from benchmarks.gpu import table_runs  # late: these need the packages
    from cl.console.command import entry_point

    if data:
        os.environ["CL_RAW"] = str(data.absolute())
    entry_point(table_runs.measure)(name, seeds, end, state.absolute(), to.absolute(), commit)


def missing() -> list[str]:
    """The packages that pyproject.toml names and that are not installed, with their versions."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["pipeline"]]
    lacking = list[str]()
    for requirement in map(Requirement, named):
        if not requirement.marker or requirement.marker.evaluate():
            try:
                metadata.version(requirement.name)
            except metadata.PackageNotFoundError:
                lacking.append(f"'{requirement.name}{requirement.specifier}'")
    return lacking


if __name__ == "__main__":
    main()
