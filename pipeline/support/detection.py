"""One transfer to object detection: of the pretrained encoder, or of a baseline."""

import copy
from collections.abc import Callable
from pathlib import Path

import torch

from cl.config import Params
from cl.detection.config import Config
from cl.detection.data import DataSet, read
from cl.detection.engines import engine
from cl.detection.transfer import Run, fine_tune
from cl.networks.backbones import Backbone
from cl.runtime import machine
from cl.training.checkpoints import Checkpoints
from pipeline.support import command, locations


def data(config: Config) -> DataSet:
    """The images of a transfer, after checking its files and that its engine is installed."""
    engine(config.engine)
    return read(config, locations.SCENES if config.data == "scenes" else locations.raw_folder())


def transfer(
    name: str,
    backbone: Backbone,
    dataset: DataSet,
    params: Params,
    *,
    out: Path,
    checkpoints: Callable[[str], Checkpoints],
) -> dict[str, float]:
    """The metrics of the transfer NAME, as `<name>_<metric>`, over its seeds."""
    config = params.transfers[name]
    progress = command.progress(name)
    for line in dataset.findings.lines():
        progress.say(line)
    deterministic = params.deterministic and not torch.cuda.is_available()
    if deterministic != params.deterministic:
        progress.say("RoIAlign has no deterministic form on a GPU: deterministic=true is without effect here")
    here = machine.find(config.precision, deterministic=deterministic, fixed_shapes=False)

    def measure(seed: int, folder: Path) -> dict[str, float]:
        run = Run(seed, here, progress, folder, checkpoints(f"seed-{seed}"))
        return fine_tune(config, copy.deepcopy(backbone), dataset, params.dataset, run)

    metrics = command.repeated(measure, config.seeds, params.seed, out)
    progress.say(", ".join(f"{key} {value:.4g}" for key, value in metrics.items()))
    return {f"{name}_{key}": value for key, value in metrics.items()}
