"""compose: write params.yaml from pipeline/conf, as DVC does. `dvc repro` only reads params.yaml."""

import click

from pipeline.composition.compose import write
from pipeline.support import command


@click.command()
@click.argument("overrides", nargs=-1)
@command.entry_point
def main(overrides: tuple[str, ...]) -> None:
    """Write params.yaml from pipeline/conf with Hydra OVERRIDES such as loss=dclw."""
    write("params.yaml", list(overrides))


if __name__ == "__main__":
    main()
