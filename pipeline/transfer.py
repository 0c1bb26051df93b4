"""transfer: object detection on the pretrained backbone."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from pipeline import command, launch, locations

if TYPE_CHECKING:
    from pathlib import Path

    from torchvision.models.resnet import ResNet

    from cl.config import Params
    from cl.detection.config import Config
    from cl.detection.data import DataSet
    from cl.training.checkpoints import Checkpoints


@click.command()
@click.argument("name")
@command.entry_point
@launch.on_all_devices
def main(name: str) -> None:
    """Run the transfer NAME of params.yaml on models/backbone.safetensors."""
    params = command.params()
    config = command.choose(name, params.transfers, "transfers")
    from cl.networks import backbones
    from cl.training.checkpoints import Checkpoints

    dataset = data(config)
    scratch = command.scratch("transfer", name, dataset.digest())
    with command.results("transfer", name) as results:
        backbone = backbones.load(params.backbone, locations.BACKBONE)
        save = lambda part: Checkpoints(scratch / part, command.checkpoint_seconds())  # noqa: E731
        results.metrics |= transfer(config, name, backbone, dataset, params, results.folder, save)
        results.notes |= {
            "engine": config.engine,
            "data_sha256": dataset.digest(),
            "noted": dataset.findings.lines(),
        }
        if config.subset:
            results.notes["subset"] = (
                f"a trial on {len(dataset.train)} training and {len(dataset.test)} test images"
            )
    if command.is_main_process():  # the others may be done sooner
        Checkpoints(scratch).discard()


def data(config: "Config") -> "DataSet":
    """What a transfer trains and tests on, checked, as is that its engine is installed."""
    from cl.detection.data import read
    from cl.detection.engines import engine

    engine(config.engine)
    return read(config, locations.SCENES if config.data == "scenes" else locations.raw())


def transfer(
    config: "Config",
    name: str,
    backbone: "ResNet",
    dataset: "DataSet",
    params: "Params",
    out: "Path",
    checkpoints: "Callable[[str], Checkpoints] | None" = None,
) -> dict[str, float]:
    """The metrics of one transfer, named `<name>_<metric>`, over its seeds."""
    import copy

    from cl.detection.transfer import run
    from cl.runtime import machine

    progress = command.progress(name)
    for line in dataset.findings.lines():
        progress.say(line)
    here = machine.find(config.precision, deterministic=params.deterministic)

    def measure(seed: int, folder: "Path") -> dict[str, float]:
        return run(
            config,
            copy.deepcopy(backbone),
            dataset,
            source=params.dataset,
            seed=seed,
            machine=here,
            progress=progress,
            out=folder,
            checkpoints=checkpoints(f"seed-{seed}") if checkpoints else None,
        )

    metrics = command.repeated(measure, config.seeds, params.seed, out)
    progress.say(", ".join(f"{key} {value:.4g}" for key, value in metrics.items()))
    return {f"{name}_{key}": value for key, value in metrics.items()}


if __name__ == "__main__":
    main()
