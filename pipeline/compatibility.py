"""Which losses go with which methods: `python -m pipeline.compatibility [METHOD or LOSS]`."""

import click

from cl.config.rules import losses_for
from cl.runtime.base_config import suggestion
from cl.runtime.registry import module_of
from pipeline.composition.compose import compose
from pipeline.composition.conf import choices, written
from pipeline.support import command

PUBLISHED = ("_imagenet", "_cifar")  # how the names of methods at their published size end


def methods() -> list[str]:
    """The methods at the size of the embedded data, without those at their published size."""
    return [name for name in choices("method") if not name.endswith(PUBLISHED)]


def losses_of(method: str) -> list[str]:
    """The kinds of losses that a method goes with, given views enough for several positives."""
    values = compose([f"method={method}"])["method"]
    config = module_of("methods", values["kind"]).Config.model_validate(values)
    gives = config.gives if config.positives(3) > 1 else config.gives - {"several positives"}
    return losses_for(type(config), gives)


@click.command()
@click.argument("name", required=False)
@command.entry_point
def main(name: str | None) -> None:
    """Print which losses go with the method NAME, or which methods with the loss NAME, or all."""
    known_methods, known_losses = choices("method"), choices("loss")
    if name and name not in known_methods + known_losses:
        near = suggestion(name, known_methods + known_losses)
        raise ValueError(f"{name} is neither a method nor a loss{near}")
    if name in known_losses:
        kind = written("loss", name)["kind"]
        fitting = [method for method in methods() if kind in losses_of(method)]
        click.echo(f"loss={name} goes with method={', '.join(fitting)}")
    for method in methods() if name is None else {name} & {*known_methods}:
        click.echo(f"method={method} goes with loss={', '.join(losses_of(method))}")


if __name__ == "__main__":
    main()
