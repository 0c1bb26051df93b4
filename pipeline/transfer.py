"""transfer: object detection with the pretrained backbone."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from cl.console.wording import counted
from pipeline.support import command, launch, locations, outputs, resuming

if TYPE_CHECKING:
    from pathlib import Path

    from cl.config import Params
    from cl.detection.config import Config
    from cl.detection.data import DataSet
    from cl.networks.backbones import Backbone
    from cl.training.checkpoints import Checkpoints


@click.command()
@click.argument("name")
@command.entry_point
@launch.on_all_devices
def main(name: str) -> None:
    """Run the transfer NAME of params.yaml on models/backbone.safetensors."""
    params = command.params()
    config = command.choose(name, params.transfers, "transfers")
    outputs.require_inputs("transfer", name)
    from cl.networks import backbones

    dataset = data(config)
    with (
        resuming.checkpoints("transfer", name, dataset.digest()) as checkpoints,
        command.results("transfer", name) as results,
    ):
        backbone = backbones.load(params.backbone, locations.BACKBONE)
        results.metrics |= transfer(
            name, backbone, dataset, params, out=results.folder, checkpoints=checkpoints
        )
        results.notes |= {
            "engine": config.engine,
            "data_sha256": dataset.digest(),
            "noted": dataset.findings.lines(),
            "explained": config.explanation(),
        }
        if config.subset:
            results.notes["subset"] = (
                f"a trial run on {counted(len(dataset.train), 'training images')} and "
                f"{counted(len(dataset.test), 'test images')}"
            )


def data(config: "Config") -> "DataSet":
    """The images of a transfer, after checking its files and that its engine is installed."""
    from cl.detection.data import read
    from cl.detection.engines import engine

    engine(config.engine)
    return read(config, locations.SCENES if config.data == "scenes" else locations.raw_folder())


def transfer(
    name: str,
    backbone: "Backbone",
    dataset: "DataSet",
    params: "Params",
    *,
    out: "Path",
    checkpoints: "Callable[[str], Checkpoints]",
) -> dict[str, float]:
    """The metrics of the transfer NAME, as `<name>_<metric>`, over its seeds."""
    import copy

    import torch

    from cl.detection.transfer import Run, fine_tune

    config = params.transfers[name]
    progress = command.progress(name)
    for line in dataset.findings.lines():
        progress.say(line)
    deterministic = params.deterministic and not torch.cuda.is_available()
    if deterministic != params.deterministic:
        progress.say("RoIAlign has no deterministic form on a GPU: deterministic=true is without effect here")
    here = command.machine(progress, config.precision, deterministic=deterministic, fixed_shapes=False)

    transform = locations.transform(params.dataset)

    def measure(seed: int, folder: "Path") -> dict[str, float]:
        run = Run(seed, here, progress, folder, checkpoints(f"seed-{seed}"))
        return fine_tune(config, copy.deepcopy(backbone), dataset, transform, run)

    metrics = command.repeated(measure, config.seeds, params.seed, out)
    progress.say(", ".join(f"{key} {value:.4g}" for key, value in metrics.items()))
    return {f"{name}_{key}": value for key, value in metrics.items()}


if __name__ == "__main__":
    main()
