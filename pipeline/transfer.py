"""transfer: object detection with the pretrained backbone."""

import click

from cl.console.wording import counted
from cl.networks import backbones
from pipeline.support import command, locations, provenance, runs
from pipeline.support.detection import data, transfer


@click.command()
@click.argument("name")
@command.entry_point
@command.on_all_devices
def main(name: str) -> None:
    """Run the transfer NAME of params.yaml on models/backbone.safetensors."""
    params = command.params()
    config = command.choose(name, params.transfers, "transfers")
    provenance.require_inputs("transfer", name)
    dataset = data(config)
    with (
        runs.begin("transfer", name, data=dataset.digest()) as run,
        command.results("transfer", name) as results,
    ):
        backbone = backbones.load(params.backbone, locations.BACKBONE)
        transfer(name, backbone, dataset, params, results, run.checkpoints)
        results.notes |= {
            **run.notes,
            "engine": config.engine,
            "data_sha256": dataset.digest(),
            "noted": dataset.findings.lines(),
        }
        if config.subset:
            results.notes["subset"] = (
                f"a trial run on {counted(len(dataset.train), 'training images')} and "
                f"{counted(len(dataset.test), 'test images')}"
            )


if __name__ == "__main__":
    main()
