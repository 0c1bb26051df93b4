"""The least time and memory of a recipe on GPUs: `python -m benchmarks.gpu.floor RECIPE --gpu h100`.

Overrides may follow the recipe.
"""

from collections.abc import Iterator

import click
from rich.filesize import decimal

from benchmarks.gpu.roofline.operations import GPUS
from benchmarks.gpu.roofline.trace import images_of, trace
from benchmarks.parameters import parameters
from cl.config import Params
from cl.console.command import entry_point

LARGEST = 3  # costs that are shown


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1)
@click.option("--gpu", type=click.Choice(list(GPUS)), default="h100", show_default=True)
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True, help="Their number.")
@entry_point
def main(recipe: str, overrides: tuple[str, ...], gpu: str, gpus: int) -> None:
    """Print what a training step of RECIPE, with OVERRIDES such as optim.batch_size=256, asks of a GPU."""
    for line in lines(parameters(f"recipe={recipe}", *overrides), gpu, gpus):
        click.echo(line)


def lines(params: Params, name: str, gpus: int) -> Iterator[str]:
    """Bounds for `gpus` GPUs of the kind `name`."""
    card, size = GPUS[name], params.optim.batch_size
    precision = "bf16" if params.precision == "auto" else params.precision
    gpu = trace(params, gpus)
    seconds = gpu.floor(card)
    read_and_written = sum(each.bytes for each in gpu.operations) / 1e9
    yield (
        f"calculated for {gpus} x {name} in {precision}: a bound, not a measurement, as if every "
        "operation ran at the card's best rate, and augmentation, launches and exchanges took no time"
    )
    rate = float(f"{size / seconds:.3g}")
    yield f"step: at least {1000 * seconds:.3g} ms for {size} images, at most {rate:g} images/s"
    yield (
        f"per GPU and step: {len(gpu.operations)} operations, {read_and_written:.3g} GB, "
        f"{sum(each.flops for each in gpu.operations) / 1e12:.3g} TFLOP, "
        f"{gpu.collectives().total()} exchanges besides the gradients"
    )
    costs = [
        f"{family} {100 * cost / seconds:.0f} %" for family, cost in gpu.costs(card).most_common(LARGEST)
    ]
    yield f"largest costs: {', '.join(costs)}"
    yield f"memory: at least {decimal(gpu.peak)} per GPU, without CUDA's and cuDNN's own"
    if images := images_of(params):
        steps = max(1, round(params.optim.epochs * (images // size)))
        yield f"pretraining: at least {steps * seconds / 3600:.3g} hours for {steps} steps, without kNN"


if __name__ == "__main__":
    main()
