"""export: write the pretrained backbone in the format of another program."""

from pathlib import Path

import click

from pipeline import command, locations, outputs

FORMATS = ("torchvision", "timm", "detectron2", "onnx")


@click.command()
@click.argument("format", type=click.Choice(FORMATS))
@click.option(
    "--to",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; default: exports/<format>.<suffix>.",
)
@command.entry_point
def main(format: str, to: Path | None) -> None:
    """Write models/backbone.safetensors in the FORMAT of another program."""
    params = command.params()
    from cl.exchange import export
    from cl.exchange.encoder import transform_in
    from cl.networks import backbones
    from cl.runtime.tensor_files import load_tensors

    suffix = export.SUFFIXES[format]
    path = to or Path("exports") / f"{format}.{suffix}"
    if path.suffix != f".{suffix}":
        raise ValueError(f"--to {path} does not end in .{suffix}, the suffix of {format} files")
    outputs.require(locations.BACKBONE)
    network = backbones.load(params.backbone, locations.BACKBONE)
    mean = [round(value, 4) for value in params.dataset.mean]
    std = [round(value, 4) for value in params.dataset.std]
    transform = transform_in(load_tensors(locations.BACKBONE)[1]).model_dump_json()
    metadata = {"network": params.backbone.model_dump_json(), "transform": transform}
    export.write(network, format, path, params.dataset.crop, metadata)
    inputs = f"RGB in [0, 1], mean {mean}, std {std}"
    click.echo(f"{path}: {params.backbone.title}, {network.fc_features} features; {inputs}")


if __name__ == "__main__":
    main()
