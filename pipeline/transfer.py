"""transfer: object detection on the pretrained backbone."""

from typing import TYPE_CHECKING

import click

from pipeline import command

if TYPE_CHECKING:
    from pathlib import Path

    from torchvision.models.resnet import ResNet

    from cl.checkpoint import Checkpoints
    from cl.config import Params
    from cl.detection.config import Config


@click.command()
@click.argument("name")
@command.entry_point
def main(name: str) -> None:
    """Run the transfer NAME of params.yaml on models/backbone.safetensors."""
    params = command.params()
    config = command.choose(name, params.transfers, "transfers")
    from cl import backbones
    from cl.checkpoint import Checkpoints
    from cl.detection.transfer import read

    dataset = read(config, root(config))
    checkpoints = Checkpoints(command.scratch("transfer", name, dataset.digest()), command.checkpoint_seconds())
    with command.results("transfer", name) as results:
        backbone = backbones.load(params.backbone, command.BACKBONE)
        results.metrics |= transfer(config, name, backbone, params, results.folder, checkpoints)
        results.notes["engine"] = config.engine
    checkpoints.discard()


def root(config: "Config") -> "Path":
    """The folder that holds VOCdevkit or coco."""
    if config.engine == "detectron2":
        raise ValueError(
            "engine=detectron2 is not available yet: it is on no package index and has to be compiled "
            "from its repository; choose engine=torchvision, which runs the same protocol"
        )
    return command.SCENES if config.data == "scenes" else command.raw()


def transfer(
    config: "Config", name: str, backbone: "ResNet", params: "Params", out: "Path", checkpoints: "Checkpoints | None" = None
) -> dict[str, float]:
    """The metrics of one transfer, named `<name>_<metric>`."""
    from cl import machine
    from cl.detection.transfer import read, run

    progress = command.progress(name)
    dataset = read(config, root(config))
    metrics = run(
        config,
        backbone,
        dataset,
        source=params.dataset,
        seed=params.seed,
        machine=machine.find(params.precision, deterministic=params.deterministic),
        progress=progress,
        out=out,
        checkpoints=checkpoints,
    )
    progress.say(", ".join(f"{key} {value:.4g}" for key, value in metrics.items()))
    return {f"{name}_{key}": value for key, value in metrics.items()}


if __name__ == "__main__":
    main()
