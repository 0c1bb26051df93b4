"""The least time and memory of a recipe on GPUs: `python -m benchmarks.gpu.floor RECIPE --gpu h100`.

Overrides may follow the recipe. For params.yaml, `python -m pipeline.plan --gpu h100` prints the same.
"""

import click

from benchmarks.parameters import parameters
from cl.console.command import entry_point
from pipeline.support.roofline import bounds
from pipeline.support.roofline.operations import GPUS


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1)
@click.option("--gpu", type=click.Choice(list(GPUS)), default="h100", show_default=True)
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True, help="Their number.")
@entry_point
def main(recipe: str, overrides: tuple[str, ...], gpu: str, gpus: int) -> None:
    """Print what a training step of RECIPE, with OVERRIDES such as optim.batch_size=256, asks of a GPU."""
    for line in bounds.lines(parameters(f"recipe={recipe}", *overrides), gpu, gpus):
        click.echo(line)


if __name__ == "__main__":
    main()
