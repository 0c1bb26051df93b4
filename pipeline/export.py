"""export: write the pretrained backbone in the format of another program."""

import re
from pathlib import Path
from typing import Any

import click

from cl.config import Params
from cl.data.transform import Transform
from cl.hub import export
from cl.hub.encoder import transform_in
from cl.networks import backbones
from cl.networks.backbones import Backbone
from cl.report.page import model_card
from cl.runtime.tensor_files import load_tensors
from pipeline.support import command, locations, outputs
from pipeline.support.composition import command_for


@click.command()
@click.argument("format", type=click.Choice([*export.SUFFIXES, *export.FOLDERS]))
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    help="The file to write, or the folder for timm and hub; default: exports/<format>.<suffix>.",
)
@click.option("--license", help="For hub: the license by its name on the hub, such as cc-by-4.0.")
@command.entry_point
def main(format: str, to: Path | None, license: str | None) -> None:
    """Write models/backbone.safetensors in the FORMAT of another program.

    timm: a folder for timm.create_model("local-dir:..."). hub: the same with a model card, for upload to the
    Hugging Face hub.
    """
    params = command.params()
    suffix = f".{export.SUFFIXES[format]}" if format in export.SUFFIXES else ""
    path = to or Path("exports") / f"{format}{suffix}"
    if suffix and path.suffix != suffix:
        raise ValueError(f"--to {path} does not end in {suffix}, the suffix of {format} files")
    if not suffix and path.is_file():
        raise ValueError(f"--to {path} is a file, but a folder is expected; choose another name")
    if license and format != "hub":
        raise ValueError(f"--license {license} is only for hub, not for {format}; leave it out")
    if license and not re.fullmatch(r"[a-z0-9.-]+", license):
        raise ValueError(
            f"--license {license} is not a license name of the hub; choose for example mit or cc-by-4.0"
        )
    outputs.require(locations.BACKBONE)
    network = backbones.load(params.backbone, locations.BACKBONE)
    recorded = load_tensors(locations.BACKBONE)[1]
    transform = transform_in(recorded, str(locations.BACKBONE))
    metadata = {"network": params.backbone.model_dump_json(), "transform": transform.model_dump_json()}
    if suffix:
        export.write(network, format, path, params.dataset.crop, metadata)
    else:
        description = _description(params, network, transform, required=format == "timm")
        library = "timm" if description else "cl"
        about = {"name": path.name, "license": license or "other", "library": library}
        card = _card(params, transform, recorded, **about) if format == "hub" else ""
        export.write_folder(network, path, description, card, recorded | metadata)
    click.echo(f"{path}: {params.backbone.title}, {network.fc_features} features; {_inputs(transform)}")


def _description(
    params: Params, network: Backbone, transform: Transform, *, required: bool
) -> dict[str, Any] | None:
    """The description that timm reads; None if timm lacks the network and `required` is false."""
    try:
        return export.describe(params.backbone, network.fc_features, transform)
    except ValueError:
        if required:
            raise
        return None


def _card(params: Params, transform: Transform, recorded: dict[str, str], **more: str) -> str:
    values = params.model_dump(mode="json")
    more |= {"network": params.backbone.title, "transform": _inputs(transform)}
    return model_card(values, command.RESULTS, command_for(params), recorded, params.titles, **more)


def _inputs(transform: Transform) -> str:
    """How images must be preprocessed."""
    mean, std = ([round(value, 4) for value in values] for values in (transform.mean, transform.std))
    return (
        f"RGB in [0, 1], resized to {transform.resize} px and cropped to {transform.crop} px, mean {mean}, "
        f"std {std}"
    )


if __name__ == "__main__":
    main()
