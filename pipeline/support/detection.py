"""One transfer of an encoder to object detection: pretrained, or a baseline's."""

import copy
from collections.abc import Callable
from pathlib import Path

from cl.config import Params
from cl.detection.config import Config
from cl.detection.data import read
from cl.detection.engines import engine
from cl.detection.records import DataSet
from cl.detection.transfer import FineTuningRun, fine_tune
from cl.networks.backbones import Backbone
from cl.runtime import machine
from cl.runtime.metric_info import BACKBONE, measurements
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
    results: command.Results,
    checkpoints: Callable[[str], Checkpoints],
) -> None:
    """Add the numbers of the transfer `name` over its seeds to the results."""
    config = params.transfers[name]
    progress = command.progress(name, params.titles.get(results.baseline or ""))
    for line in dataset.findings.lines():
        progress.say(line)
    deterministic = params.deterministic and not machine.gpus()
    if deterministic != params.deterministic:
        progress.say("deterministic=true has no effect here: RoIAlign is not deterministic on a GPU")
    here = machine.find(config.precision, deterministic=deterministic, fixed_shapes=False)
    transform = locations.transform(params.dataset)

    def measure(seed: int, folder: Path) -> command.Numbers:
        run = FineTuningRun(seed, here, progress, folder, checkpoints(f"seed-{seed}"))
        return {BACKBONE: fine_tune(config, copy.deepcopy(backbone), dataset, transform, run)}

    runs = results.over_seeds(name, measure, config.seeds or [params.seed])
    results.add(name, config.about, measurements("transfer", name, runs, config.numbers()), progress)
