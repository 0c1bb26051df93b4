"""The command `cl`: everything that works on an encoder file and needs neither Git, DVC nor params.yaml.

Each module has a function of its name, which `cl` offers too, and its Click command. Both import late, so
that --help answers at once. CONTRIBUTING.md adds one.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

ENCODER = "models/backbone.safetensors"  # where the pipeline writes it

SUMMARIES = {
    "classify": "Classify images from a few labels.",
    "compare": "Tell whether one encoder is better than another.",
    "duplicates": "Find images that are copies of each other.",
    "embed": "Write the features of images.",
    "evaluate": "Measure how well an encoder separates labelled images.",
    "export": "Write an encoder in the format of another program.",
    "search": "Find the images most similar to others.",
}


class Commands(click.Group):
    """Imports the module of a command when the command is typed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUMMARIES:
            return None
        command: click.Command = import_module(f"cl.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


@click.group(cls=Commands)
@click.version_option(package_name="cl")
def main() -> None:
    """Use a trained image encoder: any file or name that `cl.load` takes.

    IMAGES are files, folders, lists (.txt, a path on each line) and tables (.csv or .parquet with a column
    path), as many as you like. Results are written whole or not at all.
    """


images_argument = click.argument("images", nargs=-1, required=True, type=click.Path(path_type=Path))


def labelled_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name labelled training and validation images, and the neighbours that vote."""
    path = click.Path(path_type=Path)
    for option in (
        click.option(
            "--k", type=click.IntRange(min=1), default=20, show_default=True, help="Neighbours that vote."
        ),
        click.option(
            "--holdout", type=float, default=0.2, show_default=True, help="The share that is held out."
        ),
        click.option(
            "--labels",
            type=path,
            help="A table with the columns path and label, optionally group, instead of folders.",
        ),
        click.option(
            "--val",
            multiple=True,
            type=path,
            help="Other labelled images to test on; without it, a share of the first is held out.",
        ),
        click.option("--train", multiple=True, required=True, type=path, help="Labelled images."),
    ):
        function = option(function)
    return function


def encoder_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose an encoder."""
    function = click.option(
        "--prefix", help="Which encoder to use if the file contains several, for example module.encoder_q."
    )(function)
    return click.option(
        "--encoder",
        default=ENCODER,
        show_default=True,
        help="A checkpoint, or a name such as torchvision:resnet50 or timm:convnext_tiny.fb_in1k.",
    )(function)


def size_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options for the size of an encoder's images."""
    size = click.IntRange(min=1)
    function = click.option(
        "--crop",
        type=size,
        help="Side in pixels of the centre crop, given together with --resize.  [default: 224]",
    )(function)
    return click.option(
        "--resize",
        type=size,
        help="Short side in pixels, for an encoder whose file records no transform.  [default: 256]",
    )(function)
