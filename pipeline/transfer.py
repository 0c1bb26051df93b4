"""transfer: object detection on the pretrained backbone."""

from typing import TYPE_CHECKING, Any

import click

from pipeline import command

if TYPE_CHECKING:
    from pathlib import Path

    from torchvision.models.resnet import ResNet

    from cl.checkpoint import Checkpoints
    from cl.config import Params


@click.command()
@click.argument("name")
@command.entry_point
def main(name: str) -> None:
    """Run the transfer NAME of params.yaml on models/backbone.safetensors."""
    params = command.params()
    config = command.choose(name, params.transfers, "transfers")
    from cl import backbones
    from cl.checkpoint import Checkpoints

    checkpoints = Checkpoints(command.scratch("transfer", name), command.checkpoint_seconds())
    with command.results("transfer", name) as results:
        backbone = backbones.load(params.backbone, command.BACKBONE)
        results.metrics |= transfer(config, name, backbone, params, results.folder, checkpoints)
        results.notes["engine"] = config.engine
    checkpoints.discard()


def transfer(
    config: Any, name: str, backbone: "ResNet", params: "Params", out: "Path", checkpoints: "Checkpoints | None" = None
) -> dict[str, float]:
    """The metrics of one transfer, named `<name>_<metric>`."""
    from cl import machine
    from cl.detection.transfer import read, run
    from cl.progress import Progress

    if config.engine == "detectron2":
        raise ValueError(
            f"transfers.{name}.engine=detectron2 is not available yet: it is on no package index and has to be compiled "
            "from its repository; choose engine=torchvision, which runs the same protocol"
        )
    progress = Progress(name)
    dataset = read(config, command.SCENES if config.data == "scenes" else command.raw())
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
