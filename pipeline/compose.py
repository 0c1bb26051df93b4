"""Compose pipeline/conf into params.yaml as DVC does. `dvc repro` reads params.yaml and never composes it."""

from pathlib import Path

import click

CONF = Path(__file__).parent / "conf"


@click.command()
@click.argument("overrides", nargs=-1)
def main(overrides: tuple[str, ...]) -> None:
    """Write params.yaml from pipeline/conf with Hydra OVERRIDES such as loss=dclw."""
    from dvc.exceptions import InvalidArgumentError

    try:
        compose(Path("params.yaml"), list(overrides))
    except InvalidArgumentError as error:
        raise click.ClickException(str(error)) from error


def compose(target: Path, overrides: list[str]) -> None:
    """Write the parameters that `dvc exp run -S ...` would run with."""
    from dvc.utils.hydra import compose_and_dump

    compose_and_dump(target, str(CONF), None, "config", str(CONF.parent), overrides)


if __name__ == "__main__":
    main()
