"""export: the pretrained backbone for other programs."""

from pathlib import Path

import click

from pipeline import command, locations

FORMATS = ("torchvision", "timm", "detectron2", "onnx")


@click.command()
@click.argument("format", type=click.Choice(FORMATS))
@click.option(
    "--to",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file; default: exports/<format>.<suffix>.",
)
@command.entry_point
def main(format: str, to: Path | None) -> None:
    """Write models/backbone.safetensors in the FORMAT of another program."""
    params = command.params()
    from cl.exchange import export
    from cl.networks import backbones

    suffix = export.SUFFIXES[format]
    path = to or Path("exports") / f"{format}.{suffix}"
    if path.suffix != f".{suffix}":
        raise ValueError(f"--to {path}: a file of {format} ends in .{suffix}")
    network = backbones.load(params.backbone, locations.BACKBONE)
    mean, std = (
        [round(value, 4) for value in values] for values in (params.dataset.mean, params.dataset.std)
    )
    metadata = {"network": params.backbone.model_dump_json(), "mean": str(mean), "std": str(std)}
    export.write(network, format, path, params.dataset.crop, metadata)
    click.echo(
        f"{path}: {params.backbone.kind}, {network.fc_features} features; RGB in [0, 1], mean {mean}, std {std}"
    )


if __name__ == "__main__":
    main()
